"""What a fine-tune job is asked for, as a workload of a pool; what is wrong with it is told before it is submitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from configs.errors import ArtifactError, ConfigError, Conflict, NotFound
from configs.settings import Settings
from pool.repository import CHAMPION, open_releases
from pool.views import PoolReport
from pool.workload import WorkloadSpec
from recall.recipes import recipe as known_recipe

SCRATCH = "scratch"
DEFAULT_RECIPE = "quick"
MODEL = "release"
"""What is trained: everything that a release holds, as recall and the rankers of one release share an encoder."""
FREE = ("succeeded", "failed", "cancelled")
"""Phases whose name another workload may take."""


@dataclass(frozen=True)
class Wanted:
    """What the command line states; None where it leaves something open.

    Attributes:
        start_from: a version, `champion` or `scratch`.
        training: options of the work, as `serving.works.options.FinetuneOptions` names them.
        slice: fields of `WorkloadSpec` about its place in the pool.
    """

    name: str
    start_from: str
    recipe: str | None
    training: Mapping[str, Any]
    slice: Mapping[str, Any]


def declare(settings: Settings, report: PoolReport, wanted: Wanted) -> WorkloadSpec:
    """The workload that is wanted of this pool.

    Raises:
        ConfigError: an option is wrong, or the pool has no device for it. NotFound: no such release. Conflict: a
        live workload has the name. ArtifactError: the release is damaged. Each names the option and the remedy.
    """
    _require_free(wanted.name, report)
    version, recipe = _start(settings, wanted)
    options = {"start_from": version, "recipe": recipe, **wanted.training}
    stated = {**wanted.slice, "tier": wanted.slice.get("tier") or _tiers(report)}
    stated |= {"name": wanted.name, "kind": "finetune", "model": MODEL, "version": version, "options": _given(options)}
    try:
        spec = WorkloadSpec.model_validate(_given(stated))
    except ValidationError as error:
        raise ConfigError(_wrong(error)) from error
    if not set(spec.tier) & set(_tiers(report)):
        raise ConfigError(
            f"--tier {' '.join(spec.tier)}: the pool has no such device; it has {' '.join(_tiers(report))}"
        )
    return spec


def _require_free(name: str, report: PoolReport) -> None:
    before = next((each for each in report.workloads if each.name == name), None)
    if before is None or before.phase in FREE:
        return
    remedy = "" if before.kind == "inference" else f", or end that one: recpool pool cancel {name}"
    raise Conflict(f"--name {name}: a workload of that name is {before.phase}; choose another{remedy}")


def _start(settings: Settings, wanted: Wanted) -> tuple[str | None, str]:
    """Version to begin with, None for none, and the recipe, which must be that version's: weights fit no other."""
    if wanted.recipe is not None:
        _named("--recipe", lambda: known_recipe(wanted.recipe or ""))
    if wanted.start_from == SCRATCH:
        return None, wanted.recipe or DEFAULT_RECIPE
    repository = open_releases(settings)
    version = repository.champion() if wanted.start_from == CHAMPION else wanted.start_from
    if version is None:
        raise NotFound(f"--start-from {CHAMPION}: {repository.folder} has none yet; say --start-from {SCRATCH}")
    manifest = _named("--start-from", lambda: repository.manifest(version))
    if wanted.recipe not in (None, manifest.recipe):
        raise ConfigError(
            f"--recipe {wanted.recipe}: release {version} was trained by {manifest.recipe}, and weights fit no other; "
            f"leave it out, or say --start-from {SCRATCH}"
        )
    return version, manifest.recipe


def _named(flag: str, read: Callable[[], Any]) -> Any:
    """What ``read`` returns; what is wrong with it is told with the option's name."""
    try:
        return read()
    except (NotFound, ConfigError, ArtifactError) as error:
        raise type(error)(f"{flag}: {error.message}") from error


def _tiers(report: PoolReport) -> tuple[str, ...]:
    return tuple(dict.fromkeys(device.kind for device in report.devices))


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _wrong(error: ValidationError) -> str:
    """The first fault of each field, by the option that stands for it; a rule between fields names them itself."""
    told: dict[str, str] = {}
    for each in error.errors():
        flag = f"--{str(each['loc'][0]).replace('_', '-')}: " if each["loc"] else ""
        told.setdefault(flag, each["msg"].removeprefix("Value error, "))
    return "; ".join(flag + message for flag, message in told.items())
