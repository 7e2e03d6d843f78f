"""Which cores a process computes on."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def keep_to_own_cores(rank: int, count: int) -> set[int]:
    """Bind this process, with all threads it has and will have, to ``count`` cores, those of its rank; returns them.

    Replicas of one deployment on a host take cores in turn. A process that stays on a core finds its caches warm,
    and two that compute never meet on one while another idles. With fewer cores than ``count`` nothing is bound.
    """
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) <= count:
        return set(usable)
    cores = {usable[(rank * count + place) % len(usable)] for place in range(count)}
    for task in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # a thread that has ended meanwhile
            os.sched_setaffinity(int(task.name), cores)
    return cores
