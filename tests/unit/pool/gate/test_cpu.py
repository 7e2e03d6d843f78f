"""A process takes its seat on a CPU device: all its threads on the cores, in the class of its priority."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from configs.errors import ConfigError
from pool.gate import cpu

SEAT = """
import json, os, threading
from pool.device import Device, Topology
from pool.gate import cpu
os.environ["OMP_NUM_THREADS"] = "8"
threading.Thread(target=sys.stdin.read, daemon=True).start()
core = min(os.sched_getaffinity(0))
seat = cpu.enter_device(Device("cpu-0", "cpu", 1, Topology("node"), (core,)), PRIORITY, threads=4)
"""
SEEN = """
later = threading.Thread(target=sys.stdin.read, daemon=True)
later.start()
tasks = [int(task) for task in os.listdir("/proc/self/task")]
found = {
    "cores": sorted({cpu for task in tasks for cpu in os.sched_getaffinity(task)}) == [core],
    "policies": sorted({os.sched_getscheduler(task) for task in tasks}),
    "nice": min(os.getpriority(os.PRIO_PROCESS, task) for task in tasks),
    "tasks": len(tasks),
    "meter": type(seat.meter).__name__,
    "back": cpu.set_class("guaranteed"),
    "after": os.sched_getscheduler(0),
}
say(json.dumps(found))
"""
LIBRARIES = """
loaded = {"faiss", "torch"} & set(sys.modules)
import faiss, torch
say(json.dumps([sorted(loaded), seat.threads, torch.get_num_threads(), faiss.omp_get_max_threads()]))
"""


@pytest.mark.parametrize(
    ("priority", "policy", "least_nice"),
    [
        ("guaranteed", os.SCHED_OTHER, -20),
        ("burstable", os.SCHED_BATCH, cpu.NICE_OF["burstable"]),
        ("best_effort", os.SCHED_IDLE, -20),
    ],
)
def test_every_thread_old_and_new_takes_the_seat(child, priority, policy, least_nice):
    found = json.loads(child(f"PRIORITY = {priority!r}\n" + SEAT + SEEN).stdout.readline())
    assert found["tasks"] >= 3
    assert found["cores"]
    assert found["policies"] == [policy]
    assert found["nice"] >= least_nice
    assert found["meter"] == "ThreadMeter"
    assert found["after"] == (os.SCHED_OTHER if found["back"] else policy)


@pytest.mark.skipif(not cpu.may_rise(), reason="the kernel lets no process of this user rise again")
def test_a_process_that_started_at_a_lower_rank_leaves_it_with_all_its_threads(child):
    program = "import json, os, threading\nfrom pool.gate import cpu\nos.nice(10)\n"
    program += "threading.Thread(target=sys.stdin.read, daemon=True).start()\nbefore = nices()\n"
    nices = "def nices(): return sorted({os.getpriority(0, int(task)) for task in os.listdir('/proc/self/task')})\n"
    found = child(nices + program + "cpu.set_class('guaranteed')\nsay(json.dumps([before, nices()]))\n")
    assert json.loads(found.stdout.readline()) == [[10], [0]]


def test_libraries_that_the_process_loads_later_keep_to_the_seat_and_none_is_loaded_for_it(child):
    found = json.loads(child("PRIORITY = 'guaranteed'\n" + SEAT + LIBRARIES).stdout.readline())
    assert found == [[], 1, 1, 1]


def test_a_kernel_that_does_not_let_an_idle_process_back_is_reported_not_raised(monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    assert not cpu.set_class("guaranteed")


@pytest.mark.parametrize(("cores", "says"), [((), "none given"), ((0, 99_999), r"may not use \[99999\]")])
def test_cores_that_are_not_there_are_refused_before_anything_changes(device, cores, says):
    before = os.sched_getaffinity(0), os.sched_getscheduler(0)
    with pytest.raises(ConfigError, match=says):
        cpu.enter_device(replace(device, cores=cores), "best_effort")
    assert (os.sched_getaffinity(0), os.sched_getscheduler(0)) == before
