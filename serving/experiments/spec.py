"""How the traffic is divided: between releases, and between arms of experiments. Part of every ``user_config``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, JsonValue, ValidationError, model_validator

from configs.branch import Branch
from configs.errors import ConfigError
from configs.layers import merged
from configs.settings import RankingSettings, RecallSettings, Settings

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
Version = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,8}$")]
Salt = Annotated[str, Field(max_length=200)]
Share = Annotated[float, Field(ge=0, le=1)]
LOADED = {"recall": ("index", "segment_field"), "ranking": ("engine", "threads")}
"""Settings that hold for a whole replica, or from a release's build on; an arm cannot have its own."""


class Challenger(Branch):
    """A release that answers a share of the users."""

    # YAML reads `version: 2` as a number.
    model_config = ConfigDict(coerce_numbers_to_str=True)

    version: Version
    share: Share = Field(description="of the users that give their id; the others stay with the champion")
    salt: Salt = Field(default="", description="divides the users; another one divides them anew")


class Mirror(Branch):
    """A release that is asked what the champion was asked; its answers are compared and go nowhere."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    version: Version
    share: Share = Field(default=1.0, description="of the requests, as far as there is time for them")


class Arm(Branch):
    """Some users of an experiment, and what is different for them; nothing, for those to compare with."""

    name: str = Field(pattern=NAME)
    share: Share = Field(description="of the users")
    recall: dict[str, JsonValue] = Field(default_factory=dict, description="recall settings that differ, as a tree")
    ranking: dict[str, JsonValue] = Field(default_factory=dict, description="ranking settings that differ, as a tree")


class Experiment(Branch):
    """Arms for the users of some scenes. A request takes part in the first experiment that has an arm for it."""

    name: str = Field(pattern=NAME)
    salt: Salt = Field(default="", description="divides the users; absent: the name")
    scenes: tuple[Annotated[str, Field(min_length=1, max_length=128)], ...] = Field(
        default=(), max_length=100, description="of the requests that take part; absent: all"
    )
    arms: tuple[Arm, ...] = Field(min_length=1, max_length=20)

    @model_validator(mode="after")
    def _divided(self) -> Self:
        names = [arm.name for arm in self.arms]
        if len(set(names)) < len(names):
            raise ValueError(f"arms: a name is used twice in {names}")
        if sum(arm.share for arm in self.arms) > 1 + 1e-9:
            raise ValueError("arms: their shares add up to more than 1")
        return self


class Traffic(Branch):
    """Everything about the division; the champion answers whoever has no other part."""

    challenger: Challenger | None = None
    shadow: Mirror | None = None
    experiments: tuple[Experiment, ...] = Field(default=(), max_length=20)

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [each.name for each in self.experiments]
        if len(set(names)) < len(names):
            raise ValueError(f"experiments: a name is used twice in {names}")
        return self

    @property
    def versions(self) -> tuple[str, ...]:
        """Releases that are needed beside the champion, each once."""
        return tuple(dict.fromkeys(each.version for each in (self.challenger, self.shadow) if each is not None))


WHOLE = Traffic()


def arm_settings(settings: Settings, experiment: Experiment, arm: Arm) -> tuple[RecallSettings, RankingSettings]:
    """The settings that hold for an arm. Raises ConfigError naming experiment, arm and field."""
    where = f"experiments.{experiment.name}.{arm.name}"
    return (
        _overlaid(RecallSettings, settings.recall, arm.recall, f"{where}.recall", LOADED["recall"]),
        _overlaid(RankingSettings, settings.ranking, arm.ranking, f"{where}.ranking", LOADED["ranking"]),
    )


def _overlaid(kind: type, base: Any, above: Mapping[str, Any], where: str, fixed: tuple[str, ...]) -> Any:
    for name in fixed:
        if name in above:
            raise ConfigError(f"{where}.{name}: holds for a whole replica; set it in the profile")
    try:
        return kind.model_validate(merged(base.model_dump(), above)) if above else base
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{where}.{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
