"""Input files to Arrow tables: CSV and its kin as text, Parquet as typed columns.

Nothing is interpreted here beyond cells and rows; a row that cannot be split is counted with its
line and left out.
"""

# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions at import, where a type checker cannot see them.

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from configs.errors import DataError
from features.row_audit import RowAudit
from features.text_source import UNDECODABLE, TextSource

BLOCK_BYTES = 32 << 20
"""Text parsed at a time, at most; a row that fills a block is refused."""
SNIFFED_BYTES = 64 << 10
DELIMITERS = (",", "\t", ";", "|")
PARQUET_MAGIC = b"PAR1"

Progress = Callable[[float], None]


@dataclass(frozen=True)
class RawTable:
    """Rows as the file has them. CSV columns are strings with null for an empty cell."""

    path: Path
    table: pa.Table
    audit: RowAudit


def read_raw(
    path: Path,
    delimiter: str | None = None,
    encoding: str = "utf-8",
    quoting: bool = True,
    progress: Progress = lambda fraction: None,
) -> RawTable:
    """Read a whole file, Parquet by its magic bytes and anything else as delimited text.

    Args:
        delimiter: one character; absent: a tab for ``.tsv``, otherwise the commonest of ``, tab ; |``
            in the header.
        quoting: cells may be quoted with ``"`` and then hold delimiters and line breaks.
        progress: told the share of the file read so far.
    Raises:
        DataError: the file is missing, empty, binary or in another encoding; names file and remedy.
    """
    start = _first_bytes(path)
    if start.startswith(PARQUET_MAGIC):
        return _read_parquet(path, progress)
    _refuse_binary(path, start, encoding)
    header, delimiter = _header(path, start, delimiter, encoding, quoting)
    return _read_text(path, header, delimiter, encoding, quoting, progress)


def _first_bytes(path: Path) -> bytes:
    try:
        with pa.input_stream(str(path), compression="detect") as stream:
            start = stream.read(SNIFFED_BYTES)
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"{path}: cannot be read ({error}); check the path, its permissions and its compression"
        ) from error
    if not start.strip():
        raise DataError(f"{path}: the file is empty; it must hold a header and rows")
    return start


def _refuse_binary(path: Path, start: bytes, encoding: str) -> None:
    if _is_utf8(encoding) and start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{path}: looks like UTF-16 text; say encoding='utf-16'")
    if _is_utf8(encoding) and b"\0" in start:
        raise DataError(f"{path}: holds binary data; expected CSV, TSV or Parquet (or another encoding, then name it)")


def _is_utf8(encoding: str) -> bool:
    return encoding.lower().replace("_", "-") in ("utf-8", "utf8", "utf-8-sig")


def _header(path: Path, start: bytes, delimiter: str | None, encoding: str, quoting: bool) -> tuple[list[str], str]:
    """Column names and the delimiter, from the first line."""
    try:
        text = start.decode("utf-8-sig" if _is_utf8(encoding) else encoding, errors="replace")
    except LookupError as error:
        raise DataError(f"{path}: {error}; name a text encoding such as utf-8, latin-1 or utf-16") from error
    line = text.replace("\r", "\n").split("\n", 1)[0]
    if not line.strip():
        raise DataError(f"{path}: line 1 is blank; it must be the header")
    if "\N{REPLACEMENT CHARACTER}" in line:
        raise DataError(f"{path}: line 1 is not {encoding} text; name the file's encoding, for example latin-1")
    delimiter = delimiter or _guess_delimiter(path, line)
    if len(delimiter) != 1:
        raise DataError(f"{path}: delimiter {delimiter!r} must be one character")
    names = next(csv.reader([line], delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quoting else csv.QUOTE_NONE))
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise DataError(f"{path}: line 1 names columns {twice} more than once; rename one of each")
    return names, delimiter


def _guess_delimiter(path: Path, line: str) -> str:
    if ".tsv" in path.suffixes or ".tab" in path.suffixes:
        return "\t"
    return max(DELIMITERS, key=line.count) if any(d in line for d in DELIMITERS) else ","


def _read_text(
    path: Path, header: list[str], delimiter: str, encoding: str, quoting: bool, progress: Progress
) -> RawTable:
    unsplit: list[Any] = []

    def refuse(row: arrow_csv.InvalidRow) -> str:
        unsplit.append(row)
        return "skip"

    size = max(path.stat().st_size, 1)
    batches = []
    with TextSource(path, encoding) as source:
        try:
            with _open_csv(source, delimiter, quoting, refuse) as reader:
                for batch in reader:
                    batches.append(batch)
                    progress(min(source.position / size, 1.0))
                table = pa.Table.from_batches(batches, reader.schema)
        except (pa.ArrowException, OSError, UnicodeError) as error:
            if "Empty CSV" not in str(error):
                raise DataError(f"{path}: {_explain(error)}") from error
            table = pa.table({name: pa.array([], pa.string()) for name in header})
        raw = _clean(path, table, unsplit)
        if quoting and source.quotes % 2 and _ends_in_quotes(table):
            line = raw.audit.lines[-1]
            raise DataError(f"{path}:{line}: a quote is opened and never closed; close it or turn quoting off")
    return raw


def _open_csv(
    source: TextSource, delimiter: str, quoting: bool, refuse: Callable[[Any], str]
) -> arrow_csv.CSVStreamingReader:
    return arrow_csv.open_csv(
        source,
        # Row numbers are known only to the single-threaded parser, and it is not the bottleneck.
        read_options=arrow_csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
        parse_options=arrow_csv.ParseOptions(
            delimiter=delimiter,
            quote_char='"' if quoting else False,
            newlines_in_values=quoting,
            ignore_empty_lines=False,
            invalid_row_handler=refuse,
        ),
        convert_options=arrow_csv.ConvertOptions(default_column_type=pa.string()),
    )


def _explain(error: Exception) -> str:
    if "straddl" in str(error):
        return "a row is longer than some MiB; a quote may be left open, or turn quoting off"
    return f"cannot be read as delimited text ({error})"


def _ends_in_quotes(table: pa.Table) -> bool:
    """Whether the last row swallowed a line break, as the rest of a file behind an open quote does."""
    last = table.slice(max(len(table) - 1, 0)).to_pylist()
    return bool(last) and any("\n" in cell for cell in last[0].values() if cell)


def _clean(path: Path, table: pa.Table, unsplit: list[Any]) -> RawTable:
    """Empty cells as null, line numbers and the first verdicts."""
    nothing = pa.scalar(None, pa.string())
    columns = {
        name: pc.if_else(pc.equal(table.column(name), ""), nothing, table.column(name)) for name in table.column_names
    }
    text = pa.table(columns)
    audit = RowAudit(path, _line_numbers(text, [row.number for row in unsplit]))
    for row in unsplit:
        cells, expected = row.actual_columns, row.expected_columns
        reason = f"has {cells} cell{'s' * (cells != 1)}, the header has {expected}"
        audit.reject_line(row.number, reason, rows=1 + row.text.count("\n"))
    blank = np.ones(len(text), bool)
    for column in text.columns:
        blank &= column.is_null().to_numpy()
    if blank.any() and text.num_columns > 1:
        audit.drop_blank(blank)
        text = text.filter(pa.array(~blank))
    for name in text.column_names:
        undecoded = pc.fill_null(pc.match_substring(text.column(name), UNDECODABLE), False).to_numpy()
        if undecoded.any():
            audit.reject(undecoded, name, text.column(name), "is not in the file's encoding; name another")
    return RawTable(path, text, audit)


def _line_numbers(text: pa.Table, unsplit: list[int]) -> np.ndarray:
    """Where each row starts in the file: [n] int64.

    That is its number among all records plus the line breaks inside quoted cells before it.
    """
    records = np.arange(2, len(text) + len(unsplit) + 2, dtype=np.int64)
    lines = records[~np.isin(records, np.array(unsplit, np.int64))]
    breaks = np.zeros(len(text), np.int64)
    for column in text.columns:
        breaks += pc.fill_null(pc.count_substring(column, "\n"), 0).to_numpy()
    return lines + np.cumsum(breaks) - breaks


def _read_parquet(path: Path, progress: Progress) -> RawTable:
    try:
        with pq.ParquetFile(path) as file:
            groups = []
            for number in range(file.num_row_groups):
                groups.append(file.read_row_group(number))
                progress((number + 1) / file.num_row_groups)
            table = pa.concat_tables(groups) if groups else file.schema_arrow.empty_table()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable Parquet file ({error}); write it again") from error
    twice = sorted({name for name in table.column_names if table.column_names.count(name) > 1})
    if twice:
        raise DataError(f"{path}: columns {twice} appear more than once; rename one of each")
    return RawTable(path, table, RowAudit(path, np.arange(1, len(table) + 1, dtype=np.int64)))
