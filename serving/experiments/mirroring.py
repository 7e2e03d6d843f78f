"""Copies of requests for a release that stands in the shadow: answered, compared, counted, and thrown away."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from configs.errors import InvalidRequest
from serving.experiments.division import Division, Side, common_share, is_broken, is_empty
from serving.experiments.roles import SHADOW
from serving.preparation import prepare_recommend
from serving.priority import Priority
from serving.replies import build_reply
from serving.schemas import RecommendRequest

log = logging.getLogger("recpool.service")


class Mirroring:
    """Asks the shadow, one request at a time and after the caller has been answered.

    Nothing is recorded, and nothing of it counts as this replica's load; while the shadow is busy, requests are not
    copied but counted as dropped.

    Args:
        timeout_s: as long as a caller would wait.
        is_idle: whether nobody waits for an answer of the champion just now.
    """

    def __init__(self, default_k: int, timeout_s: float, is_idle: Callable[[], bool]):
        self._default_k, self._timeout_s, self._is_idle = default_k, timeout_s, is_idle
        self._task: asyncio.Task[None] | None = None

    def offer(self, division: Division, request: RecommendRequest, reply: dict[str, Any]) -> None:
        """A request that the champion has answered; returns at once."""
        side = division.wants_mirror()
        if side is None:
            return
        if self._task is not None or not self._is_idle():
            division.tallies[SHADOW].dropped += 1
            return
        self._task = asyncio.create_task(self._ask(division, side, request, reply))

    async def _ask(self, division: Division, side: Side, request: RecommendRequest, reply: dict[str, Any]) -> None:
        tally, started_s = division.tallies[SHADOW], time.monotonic()
        try:
            row = prepare_recommend(request, side.live.release, started_s + self._timeout_s, self._default_k)
            row.priority = Priority.LOW
            slate = await side.desk.queue.submit(row, side.own.recommend)
            now_s = time.monotonic()
            found = build_reply("", row, slate, side.live.release, started_s, now_s, debug=False)
            empty = is_empty(found, request.filter is not None)
            tally.answer((now_s - started_s) * 1000, empty, is_broken(found["degraded"]))
            tally.overlap += common_share(reply, found)
        except InvalidRequest:
            tally.dropped += 1  # a field that only the champion knows; the next rollout stage would refuse it, too
        except Exception as error:  # whatever a release may raise is what this is here to find out
            tally.error()
            log.warning("the shadow %s failed", side.live.version, exc_info=error)
        finally:
            self._task = None
