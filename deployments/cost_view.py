"""The costs of the pool for people, and as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector
from rich.cells import cell_len

from pool.policy.cost_summary import CostLine, CostSummary

PREFIX = "recpool_pool_cost_"
SHOWN = 20
"""Lines of a table; the others are in the document."""


def cost_lines(found: CostSummary) -> list[str]:
    """The month in a few sentences, then a table each by workload, model, scene and team."""
    return [
        f"{found.month}: {found.so_far:.2f} so far, {found.expected:.2f} expected for the whole month "
        f"({_basis(found)}); now {found.per_hour:.2f} an hour",
        f"idle {found.idle:.2f} of {found.total:.2f} charged over {found.observed_hours:.1f} hours"
        + (f"; {found.unobserved_hours:.1f} hours passed that nobody saw" if found.unobserved_hours >= 0.1 else ""),
        f"devices of its own for each workload would have cost {found.dedicated:.2f}: {_saved(found)}",
        *_table("workload", found.workloads),
        *_table("model", found.models),
        *_table("scene", found.scenes),
        *_table("team", found.teams),
    ]


def cost_metrics(found: CostSummary) -> bytes:
    """Text format 0.0.4; the counters begin anew with each month."""
    return generate_latest(_Costs(found))


class _Costs(Collector):
    def __init__(self, found: CostSummary):
        self._found = found

    def collect(self) -> Iterator[Metric]:
        found = self._found
        figures = (
            ("per_hour", "What all devices cost an hour.", found.per_hour),
            ("month_expected", "What the whole month is expected to cost.", found.expected),
            ("month_so_far", "What the month has cost.", found.so_far),
            ("month_idle", "The part of the month's cost that nobody used or kept.", found.idle),
            ("month_dedicated", "What devices of its own for each workload would have cost.", found.dedicated),
            ("month_saved", "What the pool saved against those.", found.saved),
        )
        for name, about, value in figures:
            yield GaugeMetricFamily(PREFIX + name, about, value)
        for label in ("workload", "model", "scene", "team"):
            lines: tuple[CostLine, ...] = getattr(found, f"{label}s")
            about = f"What a {label} cost this month, used and kept."
            metric = CounterMetricFamily(f"{PREFIX}{label}", about, labels=[label])
            for line in lines:
                metric.add_metric([line.name], line.cost)
            yield metric


def _basis(found: CostSummary) -> str:
    if not found.based_on_hours:
        return "at the rate so far, as no whole hour was seen"
    return f"at the mean of {found.based_on_hours} whole hours"


def _saved(found: CostSummary) -> str:
    if not found.dedicated:
        return "nothing has run yet"
    share = f"{abs(found.saved) / found.dedicated:.0%}"
    return f"the pool saved {found.saved:.2f}, {share}" if found.saved >= 0 else f"the pool cost {share} more"


def _table(label: str, lines: tuple[CostLine, ...]) -> list[str]:
    """Aligned under each other; a first line of words names the columns."""
    rows = [[label, "cost", "share", "slice hours", "used"]]
    for line in lines[:SHOWN]:
        hours = "-" if line.slice_hours is None else f"{line.slice_hours:.2f}"
        used = "-" if line.used is None else f"{line.used:.2f}"
        rows.append([line.name, f"{line.cost:.2f}", f"{line.share:.1%}", hours, used])
    widths = [max(cell_len(row[place]) for row in rows) for place in range(len(rows[0]))]
    said = [
        "  ".join(
            [_left(row[0], widths[0]), *(each.rjust(width) for each, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
    more = [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return ["", *said, *more] if lines else []


def _left(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))
