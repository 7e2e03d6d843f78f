"""How large a pool can be simulated, what the planner's tick takes there, and whether losing a zone is noticed.

A day of ten thousand million requests by rates, under the planner that runs live, on 1,000 and 10,000 devices, with
a rack and a zone lost. `tick` rows are of pools in which nothing changes: what the live controller does most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from benchmarks.report import Floor, is_quick, print_report, print_table
from benchmarks.scale.day import DAY_S
from benchmarks.scale.runs import day, ticks
from configs.errors import RecpoolError

TICK_MS, AVAILABILITY = 50.0, 0.9999
TICK_SIZES, QUICK_TICK_SIZES = (300, 1_000, 3_000, 10_000), (300, 1_000, 2_000)
DAYS: Sequence[tuple[int, float, float]] = ((1_000, DAY_S, 30.0), (10_000, DAY_S, 120.0))
"""Devices, seconds, and seconds between two ticks."""
QUICK_DAYS: Sequence[tuple[int, float, float]] = ((1_000, 7_200.0, 60.0), (3_000, 1_200.0, 60.0))
COLUMNS = ("devices", "hours", "requests", "wall_s", "peak_mib", "times_real", "outages", "availability", "violations")
COLUMNS += ("worst_p99_ms", "utilisation", "preemptions", "tick_p50_ms", "tick_p99_ms")
TICK_COLUMNS = ("devices", "leases", "place_all_ms", "tick_p50_ms", "tick_p99_ms")


def main() -> None:
    ticked = []
    for size in QUICK_TICK_SIZES if is_quick() else TICK_SIZES:
        ticked.append(ticks(size))
        print(f"ticks of {size} devices: {ticked[-1]['tick_p50_ms']:.1f} ms", flush=True)
    days = []
    for size in QUICK_DAYS if is_quick() else DAYS:
        days.append(day(*size))
        print(f"{size[0]} devices, {size[1] / 3600:g} h: {days[-1]['wall_s']:.0f} s", flush=True)
    print_table(TICK_COLUMNS, [[each[name] for name in TICK_COLUMNS] for each in ticked])
    print()
    print_table(COLUMNS, [[_shown(name, each[name]) for name in COLUMNS] for each in days])
    print()
    figures = {"ticks": ticked, "days": days, "tick_growth": growth(ticked)}
    print_report("scale", figures, floors(ticked, days), emulated=True)


def growth(ticked: Sequence[dict[str, float]]) -> float:
    """The power of the number of leases that a tick's time grows with, from the smallest pool to the largest."""
    small, large = ticked[0], ticked[-1]
    return math.log(large["tick_p50_ms"] / small["tick_p50_ms"]) / math.log(large["leases"] / small["leases"])


def floors(ticked: Sequence[dict[str, float]], days: Sequence[dict[str, Any]]) -> list[Floor]:
    thousand = next(each for each in ticked if each["devices"] == 1_000)
    return [
        Floor("planner's tick at 1,000 devices, median, ms", thousand["tick_p50_ms"], TICK_MS, "lower"),
        *(
            Floor(f"availability of {each['devices']} devices with a rack and a zone lost", each["availability"],
                  AVAILABILITY)
            for each in days
        ),
    ]  # fmt: skip


def _shown(name: str, value: Any) -> Any:
    """Availabilities differ in their last digits alone."""
    return f"{value:.5%}" if name == "availability" else value


if __name__ == "__main__":
    try:
        main()
    except RecpoolError as error:
        raise SystemExit(f"error: {error.message}") from error
