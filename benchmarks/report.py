"""How every benchmark prints: a table for people, then one JSON line for programs."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import orjson

from deployments.machine import advice


@dataclass(frozen=True)
class Floor:
    """A value that a figure must reach (``higher``) or stay within (``lower``)."""

    name: str
    value: float
    floor: float
    better: Literal["higher", "lower"] = "higher"

    @property
    def met(self) -> bool:
        return self.value >= self.floor if self.better == "higher" else self.value <= self.floor


def is_quick() -> bool:
    """Whether QUICK=1 asks for the same arms at a smaller size."""
    return os.environ.get("QUICK", "") not in ("", "0")


def machine() -> dict[str, Any]:
    """Processor, cores this process may use, and versions that decide speed."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    python = platform.python_version()
    found = {"system": platform.platform(), "processor": _processor(), "cores": cores, "python": python}
    return found | {"autogroup": bool(advice())}


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows under aligned columns; floats with four significant digits."""
    cells = [[f"{value:.4g}" if isinstance(value, float) else str(value) for value in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(columns), *cells]) for i in range(len(columns))]
    for line in [list(columns), ["-" * width for width in widths], *cells]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def print_report(
    bench: str, figures: Mapping[str, Any], floors: Sequence[Floor] = (), *, emulated: bool = False
) -> None:
    """Print each floor with its verdict, then the report as the last line of the output.

    Args:
        emulated: a pinned set of CPU cores stood in for a GPU or NPU.
    """
    for floor in floors:
        sign = ">=" if floor.better == "higher" else "<="
        print(f"{'met   ' if floor.met else 'MISSED'} {floor.name}: {floor.value:.4g} ({sign} {floor.floor:g})")
    report = {
        "bench": bench,
        "quick": is_quick(),
        "emulated": emulated,
        "machine": machine(),
        "figures": dict(figures),
        "floors": [asdict(floor) | {"met": floor.met} for floor in floors],
    }
    print(orjson.dumps(report, option=orjson.OPT_SERIALIZE_NUMPY).decode())
    sys.stdout.flush()


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123 - a device file, not a path of ours
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
