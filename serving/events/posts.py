"""``POST /v1/events``."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Header

from configs.errors import Unavailable
from serving.events.intake import EventIntake
from serving.events.schemas import EventsReply, EventsRequest
from serving.posts import JsonReply, Post
from serving.schemas import CallHeaders

PATH = "/v1/events"
Headers = Annotated[CallHeaders, Header()]


def events_post(intake: EventIntake | None) -> Post:
    """The route over an intake; without one it answers 503."""

    async def events(request: EventsRequest, headers: Headers) -> JsonReply:
        """Keep what happened: durable, and in the users' histories, before this answers; repeats count once."""
        if intake is None:
            raise Unavailable("events cannot be kept here; the log of the service says why")
        taken: dict[str, Any] = await intake.take(request)
        return JsonReply(taken)

    return Post(EventsRequest, events, EventsReply)
