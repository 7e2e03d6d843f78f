"""Following one workload from its submission to its end: what is told of it on the way, for people and programs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from configs.errors import DeadlineExceeded, NotFound, Unavailable
from deployments.pool_top import percent
from pool.device import CAPACITY_MILLI
from pool.views import DeviceReport, PoolReport, SliceReport, WorkloadReport
from pool.workload import WorkloadPhase

POLL_S = 1.0
ENDS: tuple[WorkloadPhase, ...] = ("succeeded", "failed", "cancelled", "parked")
"""Phases that a workload leaves only when a person asks for it."""


class Reports(Protocol):
    """What following needs of the pool; `deployments.pool_client.PoolClient` has it."""

    async def report(self) -> PoolReport: ...


@dataclass(frozen=True)
class Moment:
    """One workload at one moment.

    Attributes:
        device, label: that it runs on or ran on last, and what kind of device that is; ``emulated`` is part of it.
        progress: share done, in [0, 1]; None while nobody knows how much there is to do.
        steps_per_s: units of its work a second; metered_milli, share_milli: of its device's time, over the last
            second, and its weight in the gate. None without a slice.
        preemptions: times it gave way to others at the gates of its devices.
    """

    phase: WorkloadPhase
    reason: str
    device: str | None
    label: str
    progress: float | None
    steps_per_s: float | None
    metered_milli: int | None
    share_milli: int | None
    preemptions: int
    restarts: int


@dataclass(frozen=True)
class Trouble:
    """The pool cannot be asked just now. What runs goes on."""

    message: str


class Follower:
    """Asks for one workload until it ends.

    Args:
        tell: called with what is new: at each change of phase, device or reason, and every ``every_s`` seconds while
            it has a slice.
        clock: monotonic seconds. sleep: waits for so many.
    """

    def __init__(
        self,
        pool: Reports,
        name: str,
        tell: Callable[[Moment | Trouble], None],
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ):
        self._pool, self._name, self._tell, self._every_s = pool, name, tell, every_s
        self._clock, self._sleep = clock, sleep
        self._yielded: dict[str, int] = {}
        self._said: object = None
        self._said_at_s = float("-inf")

    async def to_its_end(self) -> WorkloadReport:
        """The workload once it is over, or parked.

        Raises:
            NotFound: the pool knows it no more.
        """
        while True:
            try:
                report = await self._pool.report()
            except (Unavailable, DeadlineExceeded) as error:  # its controller is started again, and takes over
                self._news(Trouble(error.message), error.message)
            else:
                found = workload_of(report, self._name)
                moment = self._moment(report, found)
                self._news(moment, (moment.phase, moment.device, moment.reason))
                if found.phase in ENDS:
                    return found
            await self._sleep(min(POLL_S, self._every_s))

    def _news(self, news: Moment | Trouble, what: object) -> None:
        now_s = self._clock()
        is_due = isinstance(news, Moment) and news.share_milli is not None and now_s - self._said_at_s >= self._every_s
        if what != self._said or is_due:
            self._said, self._said_at_s = what, now_s
            self._tell(news)

    def _moment(self, report: PoolReport, found: WorkloadReport) -> Moment:
        device, held = _slice_of(report, found)
        if held is not None:
            # A slice counts from the moment that its holder joined the gate; one that was preempted has several.
            self._yielded[held.lease] = max(held.preemptions, self._yielded.get(held.lease, 0))
        return Moment(
            phase=found.phase,
            reason=found.reason,
            device=found.device,
            label=device.label if device else "",
            progress=found.progress,
            steps_per_s=held.steps_per_s if held else None,
            metered_milli=held.metered_milli if held else None,
            share_milli=held.share_milli if held else None,
            preemptions=sum(self._yielded.values()),
            restarts=found.restarts,
        )


def workload_of(report: PoolReport, name: str) -> WorkloadReport:
    """Raises NotFound listing the known names."""
    known = {each.name: each for each in report.workloads}
    if name not in known:
        raise NotFound(f"the pool knows no workload {name!r}; known: {', '.join(known) or 'none'}")
    return known[name]


def moment_line(name: str, moment: Moment) -> str:
    """Such as ``nightly  running on gpu-0 gpu (emulated)  12% done, 41.5 steps/s, 37% of the device, yielded 17
    times``; while it does not run, and at its end, with the reason."""
    where = f" on {moment.device} {moment.label}".rstrip() if moment.device else ""
    if moment.phase != "running" or moment.share_milli is None:
        done = "" if moment.progress is None else f", {moment.progress:.0%} done"
        why = "" if moment.phase == "starting" else f": {moment.reason}"
        return f"{name}  {moment.phase}{where}{done}{why}"
    figures = ["reading" if moment.progress is None else f"{moment.progress:.1%} done"]
    if moment.steps_per_s is not None:
        figures.append(f"{moment.steps_per_s:.1f} steps/s")
    # A unit is metered when it ends: one that began before the last second counts for more than there was.
    metered_milli = min(CAPACITY_MILLI, moment.metered_milli or 0)
    figures += [f"{percent(metered_milli)} of the device", f"yielded {moment.preemptions} times"]
    if moment.restarts:
        figures.append(f"{moment.restarts} restarts")
    return f"{name}  running{where}  {', '.join(figures)}"


def _slice_of(report: PoolReport, found: WorkloadReport) -> tuple[DeviceReport | None, SliceReport | None]:
    """Where it is and what it holds there; the device it was on last while it holds nothing."""
    for device in report.devices:
        for held in device.slices:
            if held.workload == found.name:
                return device, held
    return next((each for each in report.devices if each.id == found.device), None), None
