"""How far the simulator is off: one trace, live on this machine and simulated with what was measured before.

Two emulated devices with a gateway each. First load at several rates, from which the service profiles itself; then
a rehearsal at the replay's rate, which gives the overhead of an answer outside its batch, the part of a batch's time
that the gate meters, and the objective (the rehearsal's 90th percentile, so that some requests violate it). Then the
trace, which none of these has seen: the beginning of `azure_llm_conv.csv`, played faster.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from benchmarks.calibration.figures import NAMES, errors, floors
from benchmarks.calibration.replay import LiveReplays, figures_of, simulate
from benchmarks.live import Live, live_service
from benchmarks.load import poisson
from benchmarks.report import is_quick, print_report, print_table
from benchmarks.traces import located
from configs.errors import RecpoolError
from pool.traces import read_arrivals

RATE_PER_S, QUICK_RATE_PER_S = 120.0, 60.0
"""Of rehearsal and replay: well below what two cores answer that the load generator and HAProxy share."""
SECONDS, QUICK_SECONDS = 60.0, 15.0
LEARNING = (0.3, 1.0, 1.6)
"""Of that rate: loads from which batches of all sizes that occur are measured."""
FAINT_PER_S = 10.0
"""So few that nearly all are answered alone."""
CALLS = 2_000


def trace(rate_per_s: float, seconds: float) -> np.ndarray:
    """Times of the trace's first requests, played so fast that they come at this rate; ascending [N] seconds."""
    times_s, _ = read_arrivals(located("azure_llm_conv.csv"))
    chosen = times_s[: int(rate_per_s * seconds)] - times_s[0]
    return chosen * (seconds / float(chosen[-1]))


def main() -> None:
    rate_per_s, seconds = (QUICK_RATE_PER_S, QUICK_SECONDS) if is_quick() else (RATE_PER_S, SECONDS)
    with live_service("pool", RECPOOL_PLAN__GATEWAY__SHADOWS="0") as live:
        found = calibrate(live, rate_per_s, seconds)
    rows = [[name, found["live"][name], found["simulated"][name], found["errors"][name]] for name in NAMES]
    print_table(("figure", "live", "simulated", "error"), rows)
    print()
    print_report("calibration", found, floors(found["errors"]), emulated=True)


def calibrate(live: Live, rate_per_s: float, seconds: float) -> dict:
    """Everything in its order; see the module."""
    replays = LiveReplays(live, live.requests(CALLS))
    for part in LEARNING:
        replays.play(poisson(part * rate_per_s, seconds / 2, seed=int(10 * part)))
    profile = replays.profile()
    faint, _ = replays.play(poisson(FAINT_PER_S, seconds / 2, seed=3))
    overhead_ms = max(0.0, float(np.median(faint.latency_s)) * 1e3 - profile.p50_ms[0])
    rehearsed, busy_s = replays.play(poisson(rate_per_s, seconds, seed=4))
    slo_ms = float(np.quantile(rehearsed.latency_s, 0.9)) * 1e3
    rehearsal = figures_of(rehearsed, busy_s, slo_ms, replays.devices)
    times_s = poisson(rate_per_s, seconds, seed=4)
    metered_part = (
        rehearsal.utilisation / simulate(live, profile, times_s, slo_ms, overhead_ms, replays.devices).utilisation
    )
    time.sleep(1.0)
    times_s = trace(rate_per_s, seconds)
    outcomes, busy_s = replays.play(times_s)
    seen = figures_of(outcomes, busy_s, slo_ms, replays.devices)
    told = simulate(live, profile, times_s, slo_ms, overhead_ms, replays.devices)
    told = replace(told, utilisation=told.utilisation * metered_part)
    return {
        "rate_per_s": rate_per_s,
        "requests": len(times_s),
        "slo_ms": slo_ms,
        "overhead_ms": overhead_ms,
        "metered_part": metered_part,
        "profile": profile.model_dump(),
        "live": seen.as_dict(),
        "simulated": told.as_dict(),
        "errors": errors(seen, told),
    }


if __name__ == "__main__":
    try:
        main()
    except RecpoolError as error:
        raise SystemExit(f"error: {error.message}") from error
