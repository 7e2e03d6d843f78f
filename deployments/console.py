"""What the command line prints: results on standard output, progress and errors on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from configs.errors import OfflineError, RecpoolError

Report = Callable[[str, float], None]
"""``report(stage, fraction)``: a stage of long work and its share done, 0 to 1."""


@contextmanager
def reporting() -> Iterator[Report]:
    """Progress bars on a terminal; elsewhere one line when a stage starts and one when it is done."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bars:
        yield _Bars(bars)


class _Lines:
    def __init__(self) -> None:
        self._begun: set[str] = set()
        self._done: set[str] = set()

    def __call__(self, stage: str, fraction: float) -> None:
        if stage not in self._begun:
            self._begun.add(stage)
            self._print(f"{stage} ...")
        if fraction >= 1 and stage not in self._done:
            self._done.add(stage)
            self._print(f"{stage}: done")

    @staticmethod
    def _print(line: str) -> None:
        print(line, file=sys.stderr, flush=True)


class _Bars:
    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, stage: str, fraction: float) -> None:
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, total=1.0)
        self._bars.update(self._tasks[stage], completed=min(max(fraction, 0.0), 1.0))


def show(result: Any, lines: Iterable[str], as_json: bool) -> None:
    """Print a result: as one JSON document, or as lines for a person."""
    if as_json:
        typer.echo(orjson.dumps(result, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY).decode())
        return
    for line in lines:
        typer.echo(line)


def flat_lines(values: Any, name: str = "") -> list[str]:
    """Nested values as one ``name.of.it  value`` line each."""
    if isinstance(values, Mapping):
        named = {f"{name}.{key}".lstrip("."): value for key, value in values.items()}
        return [line for key, value in named.items() for line in flat_lines(value, key)]
    if isinstance(values, list | tuple):
        return [f"{name}  {', '.join(map(str, values))}"]
    return [f"{name}  {values:.6g}" if isinstance(values, float) else f"{name}  {values}"]


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows, the first being the headings, as lines with aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def complain(message: str) -> None:
    print(f"recpool: {message}", file=sys.stderr, flush=True)


def run(command: Callable[[], object]) -> None:
    """The edge of a program: offline errors exit with 2, every other expected error with 1."""
    try:
        command()
    except OfflineError as error:
        complain(error.message)
        sys.exit(2)
    except RecpoolError as error:
        complain(error.message)
        sys.exit(1)
