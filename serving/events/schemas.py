"""The HTTP contract of events. An event that breaks it is refused by itself; the rest of its batch is taken."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SkipValidation, StrictFloat, StrictInt, StrictStr

from serving.schemas import Degradation, Id, Name, Number, encodable

MAX_EVENT_ID = 256

Kind = Literal["impression", "click", "like", "rating"]
EventId = Annotated[StrictStr, Field(min_length=1, max_length=MAX_EVENT_ID), AfterValidator(encodable)]
Time = Annotated[StrictStr, Field(max_length=64)] | StrictInt | StrictFloat


class Event(BaseModel):
    """One thing that happened to one item."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    event_id: EventId = Field(description="chosen by the caller; a repeat of the same id is kept once")
    kind: Kind = Field(description="clicks, likes and ratings enter the user's history at once, impressions do not")
    item_id: Id
    user_id: Id | None = Field(None, description="absent: the user of the recommendation, or nobody")
    value: Number | None = Field(None, description="of a rating; other kinds have none")
    time: Time | None = Field(
        None,
        description="when it happened, in UTC: ISO 8601 that ends in Z, or seconds since 1970; absent: now",
        examples=["2026-01-31T12:00:00Z"],
    )
    recommendation_id: Name | None = Field(
        None, description="the reply that showed the item; it must have, and to this user"
    )
    scene: Name | None = Field(None, description="where it happened; absent: the scene of the recommendation")


class EventsRequest(BaseModel):
    """A batch of events; each is checked by itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Checked one by one later: a batch with a bad event in it is no bad batch.
    events: list[SkipValidation[Event]] = Field(min_length=1, description="at most `events.max_batch` of the settings")


class EventResult(BaseModel):
    """What became of one event, in the order of the batch."""

    event_id: str | None = Field(description="as it was sent; null when it was no such id")
    status: Literal["accepted", "duplicate", "refused"]
    field: str | None = Field(None, description="what is wrong with a refused one")
    message: str | None = Field(None, description="why it is refused, and what to send instead")


class EventsReply(BaseModel):
    """What is accepted is durable when this is sent, and in its user's history unless `degraded` says otherwise."""

    accepted: int
    duplicates: int = Field(description="events kept before, by this call or an earlier one")
    refused: int
    results: list[EventResult]
    degraded: list[Degradation]
