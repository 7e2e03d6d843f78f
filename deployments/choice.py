"""What can change while replicas keep running."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class ReleaseChoice(BaseModel):
    """The ``user_config`` of every deployment. Serve hands it to ``reconfigure`` without a restart."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: str | None = Field(None, description="the release to serve; absent: the champion")
