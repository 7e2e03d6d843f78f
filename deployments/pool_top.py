"""The pool for people: what each device does, from metered time, beside what was leased; as lines or as tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pool.device import CAPACITY_MILLI
from pool.views import DecisionReport, DeviceReport, PoolReport, SliceReport, WorkloadReport
from pool.workload import WorkloadKind, WorkloadPhase

KINDS: dict[WorkloadKind, str] = {
    "inference": "inference",
    "warmup": "warm-up",
    "evaluate": "evaluation",
    "finetune": "fine-tune",
}
ENDED: tuple[WorkloadPhase, ...] = ("succeeded", "cancelled")
LAST_DECISIONS = 8
HANGS_AFTER_S = 5.0
GIB = 2**30


@dataclass(frozen=True)
class Column:
    """One figure of a slice; ``-`` stands where it has none.

    Attributes:
        spare: left out of a table that is too wide, the highest first; 0 never.
    """

    name: str
    cell: Callable[[SliceReport], str]
    is_number: bool = True
    spare: int = 0


COLUMNS = (
    Column("workload", lambda s: f"{s.workload} (shadow)" if s.shadow else s.workload, is_number=False),
    Column("kind", lambda s: KINDS[s.kind], is_number=False),
    Column("priority", lambda s: _words(s.priority), is_number=False, spare=3),
    Column("version", lambda s: s.version or "-", is_number=False, spare=4),
    Column("leased", lambda s: percent(s.leased_milli)),
    Column("share", lambda s: percent(s.share_milli), spare=1),
    Column("metered", lambda s: percent(s.metered_milli)),
    Column("GiB", lambda s: f"{s.memory_bytes / GIB:.1f}", spare=2),
    Column("headroom", lambda s: _ratio(s.headroom)),
    Column("queue", lambda s: str(s.queue)),
    Column("done", lambda s: _ratio(s.progress)),
    Column("steps/s", lambda s: "-" if s.steps_per_s is None else f"{s.steps_per_s:.1f}"),
    Column("yielded", lambda s: str(s.preemptions)),
)


def lines(report: PoolReport) -> list[str]:
    """The report as plain text."""
    return [clean(line) for line in _lines(report)]


def picture(report: PoolReport, width: int) -> RenderableType:
    """The report for a terminal of so many characters a line."""
    parts: list[RenderableType] = [Text(clean(title(report)), style="bold red" if _hangs(report) else "bold")]
    for device in report.devices:
        style = "bold cyan" if device.health == "alive" else "bold red"
        parts += [Text(), Text(clean(device_line(device)), style=style)]
        parts += [_table(device.slices, width)] if device.slices else []
    for heading, rows in _sections(report):
        parts += [Text(), Text(heading, style="bold"), *(Text(clean(f"  {row}")) for row in rows)]
    return Group(*parts)


def title(report: PoolReport) -> str:
    """Who says so and how fresh it is."""
    count = f"{len(report.devices)} device{'' if len(report.devices) == 1 else 's'}"
    hangs = "; the controller hangs, work goes on without it" if _hangs(report) else ""
    return f"pool of {count}, epoch {report.epoch}, last tick {report.age_s:.1f} s ago{hangs}"


def device_line(device: DeviceReport) -> str:
    """Such as ``gpu-0 gpu (emulated): 30% inference + 40% warm-up + 30% fine-tune; leased ...``."""
    slices = device.slices
    used = shares((each.kind, each.metered_milli) for each in slices) or "idle"
    leased = shares((each.kind, each.leased_milli) for each in slices) or "nothing"
    memory = f"{(device.memory_bytes - device.free_bytes) / GIB:.1f} of {device.memory_bytes / GIB:.1f} GiB"
    health = "" if device.health == "alive" else f"; {device.health}"
    return f"{device.id} {device.label}: {used}; leased {leased}, {percent(device.free_milli)} free; {memory}{health}"


def shares(of: Iterable[tuple[WorkloadKind, int]]) -> str:
    """Milli-units summed by kind of workload, such as ``30% inference + 70% fine-tune``; empty for none."""
    total = dict.fromkeys(KINDS, 0)
    for kind, milli in of:
        total[kind] += milli
    return " + ".join(f"{percent(milli)} {KINDS[kind]}" for kind, milli in total.items() if milli)


def percent(milli: int) -> str:
    """Milli-units as whole percent of a device; what is less than one is not nothing."""
    return "<1%" if 0 < milli < CAPACITY_MILLI // 100 else f"{milli * 100 / CAPACITY_MILLI:.0f}%"


def workload_line(each: WorkloadReport) -> str:
    """A workload: what, where, how far, and why."""
    where = f" on {each.device}" if each.device else ""
    done = "" if each.progress is None else f", {each.progress:.0%} done"
    restarts = f", {each.restarts} restarts" if each.restarts else ""
    why = f": {each.reason}" if each.reason else ""
    return f"{each.name}  {KINDS[each.kind]}, {_words(each.priority)}  {each.phase}{where}{done}{restarts}{why}"


def cost_lines(each: WorkloadReport) -> list[str]:
    """What a workload is expected to take, and what it took, by kind of device; and why it is where it is."""
    rows = [f"placed  {each.placement}"] if each.placement else []
    for cost in each.costs:
        by = "its graph" if cost.source == "roofline" else "measurement"
        cores = " (emulated)" if cost.emulated else ""
        rows.append(
            f"{cost.kind}  p99 of {cost.batch_rows} rows: predicted {_ms(cost.predicted_ms)}, "
            f"measured{cores} {_ms(cost.measured_ms)}; needs {percent(cost.share_milli)} of a device by {by}"
        )
    return rows


def decision_line(each: DecisionReport) -> str:
    when = time.strftime("%H:%M:%S", time.localtime(each.at_s))
    return f"{when}  {each.what}: {each.reason}"


def clean(text: str) -> str:
    """Without what would steer a terminal: names and reasons come from elsewhere."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _lines(report: PoolReport) -> Iterator[str]:
    yield title(report)
    for device in report.devices:
        yield ""
        yield device_line(device)
        yield from (f"  {row}" for row in _rows(device.slices))
    for heading, rows in _sections(report):
        yield ""
        yield heading
        yield from (f"  {row}" for row in rows)


def _sections(report: PoolReport) -> Iterator[tuple[str, Sequence[str]]]:
    """What stands below the devices: who has no slice, and what was decided, newest first."""
    placed = {each.workload for device in report.devices for each in device.slices}
    others = [each for each in report.workloads if each.name not in placed and each.phase not in ENDED]
    if others:
        yield "without a slice", [f"{workload_line(each)}{_wait(each)}" for each in others]
    if report.decisions:
        newest = sorted(report.decisions, key=lambda each: each.at_s, reverse=True)[:LAST_DECISIONS]
        yield "last decisions", [decision_line(each) for each in newest]


def _wait(each: WorkloadReport) -> str:
    return f" (waits {each.queued_s:.0f} s)" if each.phase in ("queued", "preempted") else ""


def _rows(slices: Sequence[SliceReport]) -> list[str]:
    """Columns of text below their names; none for no slices."""
    if not slices:
        return []
    table = [[column.name for column in COLUMNS], *([column.cell(each) for column in COLUMNS] for each in slices)]
    widths = [_width(column, slices) for column in COLUMNS]
    return ["  ".join(map(_aligned, COLUMNS, row, widths)).rstrip() for row in table]


def _aligned(column: Column, cell: str, width: int) -> str:
    return cell.rjust(width) if column.is_number else cell.ljust(width)


def _width(column: Column, slices: Sequence[SliceReport]) -> int:
    return max(len(column.name), *(len(column.cell(each)) for each in slices))


def _table(slices: Sequence[SliceReport], width: int) -> Table:
    columns = _fitting(slices, width)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column.name, justify="right" if column.is_number else "left", no_wrap=True)
    for each in slices:
        misses_slo = each.headroom is not None and each.headroom < 0
        cells = (Text(clean(column.cell(each))) for column in columns)
        table.add_row(*cells, style="red" if misses_slo else "dim" if each.shadow else "")
    return table


def _fitting(slices: Sequence[SliceReport], width: int) -> list[Column]:
    """The columns there is room for; all that are not spare, even if there is none."""
    columns = list(COLUMNS)
    for column in sorted(COLUMNS, key=lambda each: -each.spare):
        if column.spare and sum(_width(each, slices) + 1 for each in columns) - 1 > width:
            columns.remove(column)
    return columns


def _hangs(report: PoolReport) -> bool:
    return report.age_s > HANGS_AFTER_S


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g} ms"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _words(name: str) -> str:
    return name.replace("_", " ")
