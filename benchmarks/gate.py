"""What the gate costs and keeps: microseconds a call, shares among equals, a new cut, and how soon it reclaims.

Everything runs on one core. Shares and the new cut are of device time as metered; three processes always want
the device. Reclaim is the time from a request's arrival (Poisson) to the start of its inference, in four arms that
differ in the trainer beside it: none, one as any process, one under SCHED_IDLE, and one that also asks the gate.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

# One core: numerical libraries read these when they load, in the processes started from here too.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import numpy as np  # noqa: E402

from benchmarks.gate_members import bench_device, infer, running, share, train  # noqa: E402
from benchmarks.report import Floor, is_quick, print_report, print_table  # noqa: E402
from pool.gate.control import GateControl  # noqa: E402
from pool.gate.readings import device_milli, used_milli  # noqa: E402
from pool.gate.segment import GateSegment  # noqa: E402
from pool.workload import WorkloadPriority  # noqa: E402

SHARERS: dict[str, WorkloadPriority] = {"evaluate": "burstable", "warmup": "burstable", "finetune": "best_effort"}
CUTS = ({"evaluate": 300, "warmup": 400, "finetune": 300}, {"evaluate": 700, "warmup": 200, "finetune": 100})
STEP_MS = 4.0
CUT_S = 0.3
BIN_MS = 10
PAUSE_S = 0.25
RECUT_DONE = 0.9
"""Of the change that a new cut asks for: it has taken effect once so much is metered."""
REQUESTS_PER_S = 200.0
TRAINERS: dict[str, tuple[WorkloadPriority, bool] | None] = {
    "none": None,
    "as any process": ("guaranteed", False),
    "SCHED_IDLE": ("best_effort", False),
    "SCHED_IDLE and gate": ("best_effort", True),
}
"""Priority of the trainer beside inference, and whether it asks the gate."""


def call_us(call: Callable[[], object], calls: int) -> float:
    """CPU microseconds a call: the least of five rounds."""
    rounds = []
    for _ in range(5):
        start_ns = time.process_time_ns()
        for _ in range(calls):
            call()
        rounds.append((time.process_time_ns() - start_ns) / calls / 1e3)
    return min(rounds)


def measure_costs(segment: GateSegment) -> dict[str, float]:
    """CPU microseconds of each call, and of the two clock readings that metering by CPU time takes anywhere."""
    calls = 2_000 if is_quick() else 20_000
    control, cut = GateControl(segment, 0), {"finetune": 200, "warmup": 500}

    def guaranteed() -> None:
        with first.busy():
            pass

    def turn() -> None:
        with rest.wait_turn():  # type: ignore[union-attr] - without a limit it comes
            pass

    with segment.join("infer", "guaranteed", 300) as first, segment.join("finetune", "best_effort", 300) as rest:
        costs = {"two clocks": 2 * call_us(time.thread_time_ns, calls), "busy": call_us(guaranteed, calls)}
        held = rest.wait_turn()
        assert held is not None
        costs["check"] = call_us(lambda: held.must_yield, calls)
        held.release()
        costs["turn, alone"] = call_us(turn, calls // 10)
        with segment.join("warmup", "burstable", 300), segment.join("evaluate", "burstable", 300):
            costs["turn, of three"] = call_us(turn, calls // 10)
            costs["read"] = call_us(segment.read, calls // 10)
            costs["set_weights"] = call_us(lambda: control.set_weights(cut), calls // 10)
    return costs


@contextmanager
def sharers(segment: GateSegment) -> Iterator[Callable[[], dict[str, np.ndarray]]]:
    """Three processes that always want the device, first cut; the call stops them and returns their turns."""
    with ExitStack() as stack:
        pipes = {
            name: stack.enter_context(running(share, segment.path.parent, name, priority, CUTS[0][name], STEP_MS))
            for name, priority in SHARERS.items()
        }

        def stop() -> dict[str, np.ndarray]:
            for pipe in pipes.values():
                pipe.send("stop")
            return {name: pipe.recv() for name, pipe in pipes.items()}

        yield stop


def measure_shares(segment: GateSegment, seconds: float) -> tuple[dict[str, int], dict[str, int]]:
    """Thousandths of what was used, and of the device, at the first cut."""
    time.sleep(0.5)
    before = segment.read()
    time.sleep(seconds)
    after = segment.read()
    return used_milli(before, after), device_milli(before, after)


def recut(segment: GateSegment, times: int) -> list[int]:
    """Cut the device back and forth; monotonic ns of each second cut's beginning."""
    control, begun_ns = GateControl(segment, 1), []
    for _ in range(times):
        for cut in reversed(CUTS):
            control.set_weights(cut)
            if cut is CUTS[1]:
                begun_ns.append(time.monotonic_ns())
            time.sleep(CUT_S)
    return begun_ns


def shares_after(turns: Mapping[str, np.ndarray], begun_ns: list[int], since_ms: float, until_ms: float) -> np.ndarray:
    """Shares [SHARERS] of what was metered in a window after each cut, of all cuts together."""
    used = [
        sum(log[(log[:, 0] > cut + since_ms * 1e6) & (log[:, 0] <= cut + until_ms * 1e6), 1].sum() for cut in begun_ns)
        for log in (turns[name] for name in SHARERS)
    ]
    return np.array(used) / max(1, sum(used))


def measure_recut(turns: Mapping[str, np.ndarray], begun_ns: list[int]) -> dict[str, Any]:
    """When a new cut takes effect, and how far shares are off in the 50 ms around that and after."""
    old, new = (np.array([cut[name] / 1000 for name in SHARERS]) for cut in CUTS)
    bins = [shares_after(turns, begun_ns, at, at + BIN_MS) for at in range(0, 200, BIN_MS)]
    done = [float((shares - old) @ (new - old) / ((new - old) @ (new - old))) for shares in bins]
    effect = next((at for at, part in enumerate(done) if part >= RECUT_DONE), len(done))
    return {
        "effect_ms": (effect + 1) * BIN_MS,
        "done_by_bin": [round(part, 3) for part in done[:10]],
        "points_off_0_50_ms": 100 * float(abs(shares_after(turns, begun_ns, 0, 50) - new).max()),
        "points_off_50_100_ms": 100 * float(abs(shares_after(turns, begun_ns, 50, 100) - new).max()),
    }


def measure_reclaim(segment: GateSegment, seconds: float) -> dict[str, dict[str, float]]:
    """Milliseconds from arrival to the start of inference beside each trainer, and the trainer's units a second."""
    arms = {}
    for name, trainer in TRAINERS.items():
        with ExitStack() as stack:
            beside = stack.enter_context(running(train, segment.path.parent, *trainer)) if trainer else None
            start_s = time.monotonic()
            inference = stack.enter_context(running(infer, segment.path.parent, REQUESTS_PER_S, seconds))
            waited_ms = inference.recv()[:, 1]
            took_s, units = time.monotonic() - start_s, 0
            if beside is not None:
                beside.send("stop")
                units = beside.recv()
        p50, p99 = np.percentile(waited_ms, (50, 99))
        arms[name] = {"p50_ms": p50, "p99_ms": p99, "max_ms": max(waited_ms), "units_per_s": units / took_s}
    return arms


def measure_added(segment: GateSegment, seconds: float) -> dict[str, float]:
    """Milliseconds from arrival to inference while the gate lets the trainer run, and while it pauses it, in turns.

    What else the machine does falls on both alike, which arms run one after the other cannot say.
    """
    control, switches, runs = GateControl(segment, 2), [], True
    with (
        running(train, segment.path.parent, "best_effort", True) as trainer,
        running(infer, segment.path.parent, REQUESTS_PER_S, seconds) as inference,
    ):
        while not inference.poll(PAUSE_S):
            runs = not runs
            control.command("train", "run" if runs else "pause")
            switches.append(time.monotonic())
        arrivals_s, waited_ms = inference.recv().T
        trainer.send("stop")
        trainer.recv()
    beside = np.searchsorted(switches, arrivals_s) % 2 == 0
    return {
        f"{name}_p{percent}_ms": float(np.percentile(waited_ms[which], percent))
        for name, which in (("running", beside), ("paused", ~beside))
        for percent in (50, 99)
    }


def main() -> None:
    seconds, cuts = (3.0, 8) if is_quick() else (10.0, 40)
    with tempfile.TemporaryDirectory(prefix="recpool-gate-", dir="/dev/shm") as folder:
        segment = GateSegment.create(Path(folder), bench_device())
        costs = measure_costs(segment)
        print_table(("call", "cpu us"), list(costs.items()))
        with sharers(segment) as stop:
            used, of_device = measure_shares(segment, seconds)
            begun_ns = recut(segment, cuts)
            turns = stop()
        cut = measure_recut(turns, begun_ns)
        print()
        print_table(
            ("workload", "weight", "metered", "of device"), [(n, CUTS[0][n], used[n], of_device[n]) for n in SHARERS]
        )
        print("\nafter a cut to 70/20/10:", cut)
        reclaim = measure_reclaim(segment, seconds)
        added = measure_added(segment, 2 * seconds)
    print()
    print_table(("trainer", *reclaim["none"]), [(name, *arm.values()) for name, arm in reclaim.items()])
    print("\ntrainer at the gate, run and paused in turns:", added)
    points_off = max(abs(used[name] - CUTS[0][name]) for name in SHARERS) / 10
    print_report(
        "gate",
        {
            "costs_us": costs,
            "used_milli": used,
            "device_milli": of_device,
            "recut": cut,
            "reclaim": reclaim,
            "trainer_paused_in_turns": added,
        },
        [
            Floor("check_us", costs["check"], 5.0, "lower"),
            Floor("shares_points_off", points_off, 3.0, "lower"),
            Floor("recut_effect_ms", cut["effect_ms"], 50.0, "lower"),
            Floor("reclaim_p99_ms", reclaim["SCHED_IDLE and gate"]["p99_ms"], 5.0, "lower"),
        ],
    )


if __name__ == "__main__":
    main()
