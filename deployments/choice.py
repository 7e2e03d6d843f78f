"""What can change while replicas keep running."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from configs.errors import ConfigError


class ReleaseChoice(BaseModel):
    """The ``user_config`` of every deployment. Serve hands it to ``reconfigure`` without a restart."""

    # YAML reads `version: 2` as a number.
    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    version: str | None = Field(None, min_length=1, description="the release to serve; absent: the replica's default")


def chosen_version(user_config: dict[str, Any], default: str | None) -> str | None:
    """The release a ``user_config`` chooses, or the default when it leaves that open.

    Raises:
        ConfigError: it holds anything else. Whether there is such a release is the repository's to say.
    """
    try:
        return ReleaseChoice.model_validate(user_config).version or default
    except ValidationError as error:
        raise ConfigError(f"user_config {user_config!r:.200} chooses no release: {error}") from error
