"""Events of the log as interactions of a dataset: what users did since it was last brought up to date.

The dataset itself says up to which position of the log it goes, and both change in one step: an event is in it once,
whatever is interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from features.datasets import Dataset
from features.event_log import EventLog
from features.event_log_histories import HISTORY_KINDS
from features.event_log_records import LoggedEvent
from features.schema import ITEM_ID, TIME, USER_ID, VALUE

PAGE = 10_000


@dataclass(frozen=True)
class Absorbed:
    """What a dataset gained: interactions, and of their users and items those that it did not know; and up to which
    position of the log it goes now."""

    interactions: int
    users: int
    items: int
    watermark: int


def absorb(folder: Path, log: EventLog) -> Absorbed:
    """Add what the log has behind the dataset's watermark; a dataset without news is not written again.

    Raises:
        DataError: the folder holds no dataset. Unavailable: the log cannot be read.
    """
    dataset = Dataset.load(folder)
    events, watermark = _news(log, dataset.watermark)
    if watermark == dataset.watermark:
        return Absorbed(0, 0, 0, watermark)
    grown = replace(with_events(dataset, events), watermark=watermark)
    grown.save(folder)
    users, items = len(grown.users) - len(dataset.users), len(grown.items) - len(dataset.items)
    return Absorbed(len(events), users, items, watermark)


def with_events(dataset: Dataset, events: Sequence[LoggedEvent]) -> Dataset:
    """The dataset with these events as interactions. Of new users and items it knows the ids alone; a value that an
    event lacks stays absent, which counts as positive."""
    columns = {
        USER_ID: pa.array([event.user_id for event in events], pa.string()),
        ITEM_ID: pa.array([event.payload["item_id"] for event in events], pa.string()),
        VALUE: pa.array([event.payload.get("value") for event in events], pa.float32()),
        TIME: pa.array([event.time_s for event in events], pa.float64()),
    }
    return replace(
        dataset,
        interactions=_appended(dataset.interactions, pa.table(columns)),
        users=_with_ids(dataset.users, USER_ID, columns[USER_ID]),
        items=_with_ids(dataset.items, ITEM_ID, columns[ITEM_ID]),
    )


def _news(log: EventLog, after: int) -> tuple[list[LoggedEvent], int]:
    """Events that say that a known user met an item, and the last position that was looked at."""
    events: list[LoggedEvent] = []
    for page in _pages(log, after):
        after = page[-1].position
        events += [each for each in page if each.kind in HISTORY_KINDS and each.user_id is not None]
    return events, after


def _pages(log: EventLog, after: int) -> Iterator[list[LoggedEvent]]:
    while page := log.read(after, PAGE):
        yield page
        after = page[-1].position


def _with_ids(table: pa.Table, name: str, ids: pa.Array) -> pa.Table:
    known = set(table.column(name).to_pylist())
    new = [each for each in dict.fromkeys(ids.to_pylist()) if each not in known]
    return _appended(table, pa.table({name: pa.array(new, pa.string())})) if new else table


def _appended(table: pa.Table, rows: pa.Table) -> pa.Table:
    """Rows behind a table, in its columns and types; columns that the rows lack are null."""
    columns = [
        rows.column(field.name).cast(field.type) if field.name in rows.column_names else pa.nulls(len(rows), field.type)
        for field in table.schema
    ]
    return pa.concat_tables([table, pa.table(columns, schema=table.schema)]).combine_chunks()
