"""From logged events to what users did, in the feature store."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Protocol

from configs.errors import InvalidRequest
from features.event_log_records import LoggedEvent
from features.store_records import UserEvent

log = logging.getLogger(__name__)

HISTORY_KINDS = ("click", "like", "rating")
"""Kinds that say that a user met an item; to have been shown one is no such event."""


class Histories(Protocol):
    """What is needed of a feature store."""

    def record_many(self, events: Mapping[str, Sequence[UserEvent]]) -> None: ...


def bring(store: Histories, events: Sequence[LoggedEvent]) -> None:
    """Add events to their users' histories; what is there already counts once.

    An event that the store refuses is left out and logged: it would be refused for ever.

    Raises:
        Unavailable: the store does not answer; some of the events may be there.
    """
    by_user: defaultdict[str, list[UserEvent]] = defaultdict(list)
    for event in sorted(events, key=lambda each: each.time_s):
        if event.user_id is not None and event.kind in HISTORY_KINDS:
            item, value = event.payload["item_id"], event.payload.get("value")
            by_user[event.user_id].append(UserEvent(item, value, event.time_s))
    if not by_user:
        return
    try:
        store.record_many(by_user)
    except InvalidRequest as error:
        if len(events) == 1:
            log.error("event %s is not in its user's history: %s", events[0].event_id, error.message)
            return
        for event in events:
            bring(store, [event])
