"""Replicas of a host keep to cores of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

BOUND = """
import os, sys, threading
from pool.engines.cores import keep_to_own_cores
cores, seen = keep_to_own_cores(int(sys.argv[1]), int(sys.argv[2])), []
late = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
late.start(); late.join()
print(sorted(cores), sorted(seen[0]))
"""


@pytest.mark.parametrize(("rank", "count"), [(0, 1), (1, 1), (2, 1), (0, 4_096)])
def test_replicas_of_a_host_take_its_cores_in_turn_with_all_their_threads(rank, count):
    done = subprocess.run([sys.executable, "-c", BOUND, str(rank), str(count)], capture_output=True, text=True)
    usable = sorted(os.sched_getaffinity(0))
    expected = usable if len(usable) <= count else [usable[rank % len(usable)]]
    assert done.stdout == f"{expected} {expected}\n", done.stderr
