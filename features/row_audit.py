"""Which rows of an input file are kept, and why the others are not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from configs.errors import DataError

EXAMPLES = 20
"""Bad rows that are reported one by one; the others are only counted."""


@dataclass(frozen=True)
class BadRow:
    """One refused row; ``line`` counts from 1 and includes the header (Parquet: the row, from 1)."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


class RowAudit:
    """Verdicts on the rows of one file.

    Args:
        lines: [n] int64, where each row that could be split stands in the file.
    """

    def __init__(self, path: Path, lines: np.ndarray):
        self.path = path
        self.lines = lines
        self.keep = np.ones(len(lines), bool)
        self.examples: list[BadRow] = []
        self._unsplit = 0

    @property
    def bad(self) -> int:
        return self._unsplit + int((~self.keep).sum())

    @property
    def total(self) -> int:
        return self._unsplit + len(self.lines)

    def reject_line(self, line: int, reason: str, rows: int = 1) -> None:
        """Count text that could not be split into a row; it may have swallowed several lines."""
        self._unsplit += rows
        if len(self.examples) < EXAMPLES:
            self.examples.append(BadRow(str(self.path), line, reason))

    def reject(self, bad: np.ndarray, column: str, cells: pa.Array | pa.ChunkedArray, rule: str) -> None:
        """Drop the rows marked in ``bad`` [n] bool because ``column`` breaks a rule there."""
        fresh = np.flatnonzero(bad & self.keep)
        self.keep[fresh] = False
        for row in fresh[:EXAMPLES]:
            reason = f"{column} = {_shown(cells[int(row)])} {rule}"
            self.examples.append(BadRow(str(self.path), int(self.lines[row]), reason))

    def drop_blank(self, blank: np.ndarray) -> None:
        """Forget rows that are blank lines; they are neither good nor bad."""
        assert self.keep.all()
        self.lines, self.keep = self.lines[~blank], self.keep[~blank]

    def first(self) -> list[BadRow]:
        return sorted(self.examples, key=lambda row: row.line)[:EXAMPLES]

    def settle(self, max_bad_share: float, skip_bad: bool) -> None:
        """Raises DataError when more than ``max_bad_share`` of the rows are bad, unless they are skipped."""
        if skip_bad or self.bad <= max_bad_share * self.total:
            return
        shown = "\n".join(f"  {row}" for row in self.first())
        raise DataError(
            f"{self.path}: {self.bad} of {self.total} rows are bad, more than the allowed share of "
            f"{max_bad_share:g}. Correct them, raise max_bad_share, or skip bad rows. The first:\n{shown}"
        )


def _shown(cell: pa.Scalar) -> str:
    text = repr(cell.as_py())
    return text if len(text) <= 60 else text[:57] + "..."
