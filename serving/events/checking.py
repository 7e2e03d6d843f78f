"""Whether an event can be what it says: its form, its time, and the recommendation that it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import ValidationError

from configs.errors import InvalidRequest
from configs.event_settings import EventSettings
from features.event_log import LoggedEvent
from features.event_log_histories import HISTORY_KINDS
from serving.events.schemas import Event

MILLISECONDS_FROM = 1e11
"""A number of seconds this large would lie in the year 5138; it is one of milliseconds."""
RATING = "rating"


@dataclass(frozen=True)
class Checked:
    """An event whose form and time are right; ``time_s`` in seconds since 1970."""

    event: Event
    time_s: float


def check(raw: Any, settings: EventSettings, now_s: float) -> Checked:
    """Raises InvalidRequest naming field and remedy."""
    try:
        event = Event.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "event"
        raise InvalidRequest(f"{name}: {first['msg']}", name) from None
    if (event.value is None) == (event.kind == RATING):
        remedy = "send the rating" if event.kind == RATING else f"leave it out, a {event.kind} has none"
        raise InvalidRequest(f"value: {event.value}; {remedy}", "value")
    time_s = now_s if event.time is None else _seconds(event.time)
    if time_s > now_s + settings.future_s:
        raise InvalidRequest(
            f"time: {time_s - now_s:.0f} s ahead of this service's clock; set yours, or leave time out", "time"
        )
    if time_s < now_s - settings.max_age_s:
        raise InvalidRequest(
            f"time: older than {settings.max_age_s / 86_400:g} days; events of long ago are for `recpool ingest`",
            "time",
        )
    return Checked(event, time_s)


def record_of(checked: Checked, shown: LoggedEvent | None, settings: EventSettings) -> dict[str, Any]:
    """What the log keeps of an event, joined to the impression of the recommendation that it names.

    Args:
        shown: that impression; None when the log has none of that id, or the event names none.
    Raises:
        InvalidRequest: there is none, or it speaks of other items, another user or a later time.
    """
    event = checked.event
    joined = {} if event.recommendation_id is None else _joined(checked, shown, settings)
    user_id = event.user_id or joined.get("user_id")
    return {
        "event_id": event.event_id,
        "kind": event.kind,
        "time_s": checked.time_s,
        "user_id": user_id,
        "pending": user_id is not None and event.kind in HISTORY_KINDS,
        "payload": {
            "item_id": event.item_id,
            "value": event.value,
            "scene": event.scene or joined.get("scene"),
            "recommendation_id": event.recommendation_id,
            "position": joined.get("position"),
            "versions": joined.get("versions"),
        },
    }


def _joined(checked: Checked, shown: LoggedEvent | None, settings: EventSettings) -> Mapping[str, Any]:
    event = checked.event
    if shown is None or "items" not in shown.payload:
        raise InvalidRequest(
            f"recommendation_id: no recommendation {event.recommendation_id!r:.80} was recorded; send the id of a "
            "reply that was no dry run, or leave it out",
            "recommendation_id",
        )
    if event.item_id not in shown.payload["items"]:
        raise InvalidRequest(
            f"item_id: {event.item_id!r:.80} was not in that recommendation; leave recommendation_id out", "item_id"
        )
    if event.user_id is not None and event.user_id != shown.user_id:
        raise InvalidRequest(
            "user_id: the recommendation was for somebody else; leave user_id or recommendation_id out", "user_id"
        )
    if checked.time_s < shown.time_s - settings.future_s:
        raise InvalidRequest(
            f"time: {shown.time_s - checked.time_s:.0f} s before the recommendation was made; set your clock", "time"
        )
    return {
        "user_id": shown.user_id,
        "scene": shown.payload.get("scene"),
        "position": shown.payload["items"].index(event.item_id),
        "versions": shown.payload.get("versions"),
    }


def _seconds(time: str | float) -> float:
    """Seconds since 1970 of a time in UTC."""
    if not isinstance(time, str):
        if not abs(time) < MILLISECONDS_FROM:
            raise InvalidRequest(f"time: {time!r:.40} is no date; send seconds since 1970, not ms", "time")
        return float(time)
    try:
        moment = datetime.fromisoformat(time)
    except ValueError:
        raise InvalidRequest(f"time: {time!r} is not ISO 8601; write 2026-01-31T12:00:00Z", "time") from None
    if moment.utcoffset() != timedelta(0):
        raise InvalidRequest(f"time: {time!r} is not in UTC; convert it, and end it with Z", "time")
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
