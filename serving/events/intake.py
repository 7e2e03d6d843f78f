"""Events on their way in: checked one by one, joined, made durable together, told one by one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from configs.errors import InvalidRequest, Unavailable
from configs.event_settings import EventSettings
from configs.settings import Settings
from features.event_log import EventLog, LoggedEvent, open_event_log
from features.event_log_commits import GroupCommit
from features.event_log_histories import Histories
from serving.events.checking import Checked, check, record_of
from serving.events.schemas import MAX_EVENT_ID, EventsRequest

log = logging.getLogger("recpool.events")

LOOK_AGAIN_S = 0.05
"""Between two looks for a recommendation whose impression is still on its way to the log."""

Result = dict[str, Any]


class EventIntake:
    """Takes batches of events.

    Args:
        reader: a connection of its own to the log; reading must not wait for a commit.
        clock: seconds since 1970.
    """

    def __init__(
        self, settings: EventSettings, reader: EventLog, commits: GroupCommit, clock: Callable[[], float] = time.time
    ):
        self._settings, self._reader, self._commits, self._clock = settings, reader, commits, clock
        self._threads = ThreadPoolExecutor(1, "event-reader")

    async def take(self, request: EventsRequest) -> dict[str, Any]:
        """Keep a batch; see `serving.events.schemas.EventsReply`.

        Raises:
            InvalidRequest: too many events. Overloaded: too many wait. Unavailable: the log does not answer.
                Nothing of the batch is acknowledged then; sending it again is right and harmless.
        """
        if len(request.events) > self._settings.max_batch:
            most = self._settings.max_batch
            raise InvalidRequest(f"events: {len(request.events)} in one call; send at most {most}", "events")
        results, checked = self._checked(request.events)
        records = await self._joined(results, checked)
        in_store = await self._kept(results, records)
        told = [result["status"] for result in results]
        return {
            "accepted": told.count("accepted"),
            "duplicates": told.count("duplicate"),
            "refused": told.count("refused"),
            "results": results,
            "degraded": [] if in_store else [{"stage": "features", "reason": "store_unavailable"}],
        }

    def status(self) -> dict[str, int]:
        return {f"events_{name}": count for name, count in self._commits.counts.items()}

    def close(self) -> None:
        self._commits.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._reader.close()

    def _checked(self, raws: Sequence[Any]) -> tuple[list[Result], dict[int, Checked]]:
        """A result for every event, and by place those that are right so far."""
        results, checked, now_s = [], {}, self._clock()
        for place, raw in enumerate(raws):
            results.append({"event_id": _id_of(raw)})
            try:
                checked[place] = check(raw, self._settings, now_s)
            except InvalidRequest as error:
                _refuse(results[place], error)
        return results, checked

    async def _joined(self, results: list[Result], checked: dict[int, Checked]) -> dict[int, dict[str, Any]]:
        """What to log, by place, of the events that fit the recommendations they name."""
        named = {each.event.recommendation_id for each in checked.values()} - {None}
        shown = await self._impressions([str(name) for name in named]) if named else {}
        records = {}
        for place, each in checked.items():
            try:
                records[place] = record_of(each, shown.get(each.event.recommendation_id or ""), self._settings)
            except InvalidRequest as error:
                _refuse(results[place], error)
        return records

    async def _impressions(self, ids: list[str]) -> dict[str, LoggedEvent]:
        """Those of the recommendations, waiting a little for one that is not there yet."""
        loop, found = asyncio.get_running_loop(), {}
        until_s = loop.time() + self._settings.join_wait_s
        while True:
            missing = [each for each in ids if each not in found]
            found |= await loop.run_in_executor(self._threads, self._reader.find, missing)
            if len(found) == len(ids) or loop.time() >= until_s:
                return found
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _kept(self, results: list[Result], records: dict[int, dict[str, Any]]) -> bool:
        """Whether the events are in the histories as well as in the log."""
        if not records:
            return True
        kept = await asyncio.wrap_future(self._commits.submit(list(records.values())))
        for place, new in zip(records, kept.new, strict=True):
            results[place]["status"] = "accepted" if new else "duplicate"
        return kept.in_store


def open_intake(settings: Settings, store: Histories) -> EventIntake | None:
    """The intake of a replica; None, logged, when there is no log to write to."""
    try:
        writer, reader = open_event_log(settings), open_event_log(settings)
    except Unavailable as error:
        log.error("no events are taken: %s", error.message)
        return None
    commits = GroupCommit(writer, store, settings.events.max_waiting)
    return EventIntake(settings.events, reader, commits)


def _id_of(raw: Any) -> str | None:
    """What to call an event that may be anything."""
    given = raw.get("event_id") if isinstance(raw, dict) else None
    return given if isinstance(given, str) and len(given) <= MAX_EVENT_ID else None


def _refuse(result: Result, error: InvalidRequest) -> None:
    result |= {"status": "refused", "field": error.field, "message": error.message}
