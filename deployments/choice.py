"""What can change while replicas keep running."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from configs.errors import ConfigError
from serving.experiments.spec import WHOLE, Traffic


class ReleaseChoice(BaseModel):
    """The ``user_config`` of every deployment. Serve hands it to ``reconfigure`` without a restart."""

    # YAML reads `version: 2` as a number.
    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    version: str | None = Field(None, min_length=1, description="the release to serve; absent: the replica's default")
    traffic: Traffic = Field(WHOLE, description="parts of the traffic that other releases or settings get")


def read_choice(user_config: dict[str, Any]) -> ReleaseChoice:
    """What a ``user_config`` chooses.

    Raises:
        ConfigError: it is none; names the field. Whether there is such a release is the repository's to say.
    """
    try:
        return ReleaseChoice.model_validate(user_config)
    except ValidationError as error:
        raise ConfigError(f"user_config {user_config!r:.200} chooses no release: {error}") from error


def chosen_version(user_config: dict[str, Any], default: str | None) -> str | None:
    """The release that serves by a ``user_config``, or the default where that is open; raises as `read_choice`."""
    return read_choice(user_config).version or default
