"""The HTTP contract of changes of items."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SkipValidation, StrictBool

from serving.schemas import MAX_FIELDS, FeatureValue, Id, Name

MAX_CHANGES = 1_000


class Change(BaseModel):
    """An item that comes, changes or goes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    item_id: Id
    fields: dict[Name, FeatureValue] = Field(
        default_factory=dict,
        max_length=MAX_FIELDS,
        description="values by item field, null for none; others stay as they are. `hidden`, `available_from_s` and "
        "`expires_at_s` (seconds since 1970 UTC) say when it may be shown",
    )
    delete: StrictBool = Field(False, description="let it never be shown again, until it is sent anew")


class ChangesRequest(BaseModel):
    """Changes in order; each is checked by itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    changes: list[SkipValidation[Change]] = Field(min_length=1, max_length=MAX_CHANGES)


class ChangeResult(BaseModel):
    """What became of one change, in the order of the batch."""

    item_id: str | None = Field(description="as it was sent; null when it was no id")
    status: Literal["accepted", "refused"]
    field: str | None = None
    message: str | None = None


class ChangesReply(BaseModel):
    """What is accepted is durable, and seen by every replica within a second."""

    accepted: int
    refused: int
    version: int = Field(description="of the last change there is; 0 when nothing ever changed")
    results: list[ChangeResult]
