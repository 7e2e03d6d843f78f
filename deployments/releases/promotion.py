"""Letting a release serve, or one that served before, for all callers at once; `recpool release rollout` is gradual.

The alias changes first, as only one of several writers can change it; a service that cannot follow changes it back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from configs.errors import Conflict, RecpoolError
from configs.settings import Settings
from deployments.releases.housekeeping import rollback_target
from deployments.releases.served import Served
from pool.repository import CHAMPION, ReleaseRepository, open_releases


@dataclass(frozen=True)
class Promoted:
    """What was done.

    Attributes:
        before: the version that had the alias, None for none.
        served: whether a running service was told.
    """

    version: str
    alias: str
    before: str | None
    served: bool


def promote(
    settings: Settings,
    version: str,
    alias: str = CHAMPION,
    reason: str = "",
    event: str | None = None,
    told: Callable[[str], None] = lambda status: None,
) -> Promoted:
    """Give a release an alias; as champion it serves when this returns, if a service runs in the settings' home.

    Args:
        event: what the history says; absent: by the alias.
    Raises:
        NotFound: no such release or alias. ArtifactError: the release is damaged. Conflict: somebody else changed the
        alias meanwhile, or it names the release already. Unavailable: the service does not serve it; all is as before.
    """
    repository = open_releases(settings)
    repository.verify(version)
    before = repository.aliases().get(alias)
    if before == version:
        raise Conflict(f"release {version} is the {alias} already")
    event = event or ("promoted" if alias == CHAMPION else f"made {alias}")
    repository.change(event, version, {alias: version}, reason, expected={alias: before})
    served = Served.find(settings) if alias == CHAMPION else None
    if served is not None:
        _swap(repository, served, version, before, told)
    return Promoted(version, alias, before, served is not None)


def roll_back(settings: Settings, reason: str = "", told: Callable[[str], None] = lambda status: None) -> Promoted:
    """Return to the champion before this one. Raises as `promote`; NotFound when there was none."""
    return promote(settings, rollback_target(open_releases(settings)), CHAMPION, reason, "rolled back to", told)


def undivided(choice: Mapping[str, Any], version: str) -> dict[str, Any]:
    """A choice with one release for all callers; experiments stay."""
    experiments = (choice.get("traffic") or {}).get("experiments")
    whole = {**{name: value for name, value in choice.items() if name != "traffic"}, "version": version}
    return {**whole, "traffic": {"experiments": experiments}} if experiments else whole


def _swap(
    repository: ReleaseRepository, served: Served, version: str, before: str | None, told: Callable[[str], None]
) -> None:
    choice = served.choice()
    try:
        served.choose(undivided(choice, version), told=told)
    except BaseException as error:  # an interrupt too: alias and service must not disagree
        why = error.message if isinstance(error, RecpoolError) else type(error).__name__
        repository.change("not served", version, {CHAMPION: before}, why, expected={CHAMPION: version})
        served.choose(choice)
        raise
