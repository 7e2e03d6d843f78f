"""Anyone's interactions, users and items to a dataset in Recpool's own columns.

A run reads each file whole with Arrow, gives its columns their parts, parses them a column at a
time, drops the bad rows (or refuses the file when they are many), and joins the three tables so
that every id in the interactions has its row. Nothing is written here: `Dataset.save` makes the
result visible at once or not at all.
"""

# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions at import, where a type checker cannot see them.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from configs.errors import DataError
from features import parsing
from features.datasets import Dataset
from features.inference import SEPARATORS, Inferred, infer, positive_at
from features.ingest_columns import TITLE, Roles, assign, check_shared
from features.ingest_spec import IngestReport, IngestSpec, TableSpec
from features.readers import RawTable, read_raw
from features.row_audit import EXAMPLES, BadRow
from features.schema import ITEM_ID, TIME, USER_ID, VALUE, Entity, FeatureField, FeatureSchema, HistorySpec

ENTITIES: dict[str, Entity] = {"interactions": "context", "users": "user", "items": "item"}
MOST_VALUES = 32
"""Values of a multi-valued field that an inferred schema keeps at most."""

Progress = Callable[[str, float], None]


@dataclass
class _Run:
    """What is found out on the way."""

    spec: IngestSpec
    progress: Progress
    fields: list[FeatureField] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)
    bad_rows: int = 0
    typed: set[str] = field(default_factory=set)


def ingest(spec: IngestSpec, progress: Progress | None = None) -> tuple[Dataset, IngestReport]:
    """Read, check and join the files of a spec.

    Args:
        progress: called with a stage ("reading items", ...) and its share done, 0 to 1.
    Raises:
        DataError: a file cannot be read, a column is missing, an override names no column, or too
            many rows are bad; names the file, the field or the lines, and the remedy.
    """
    run = _Run(spec, progress or (lambda stage, fraction: None))
    raws = {name: _read(run, name, table) for name, table in _tables(spec).items()}
    check_shared(spec.columns, {str(raw.path): raw.table.column_names for raw in raws.values()})
    tables = {name: _parse(run, name, raw) for name, raw in raws.items()}
    _refuse_unknown_types(run, raws)
    interactions = tables["interactions"]
    if not len(interactions):
        raise DataError(f"{spec.interactions.path}: no usable row of interactions; give at least one")
    users, twice_users = _entity(tables.get("users"), USER_ID, interactions)
    items, twice_items = _entity(tables.get("items"), ITEM_ID, interactions)
    for what, count in (("users", twice_users), ("items", twice_items)):
        if count:
            run.notes.append(f"{count} duplicate rows of {what}: the last of each id was taken")
    dataset = Dataset(spec.name, _schema(run, interactions), interactions, users, items)
    report = IngestReport(
        len(interactions), len(users), len(items), run.bad_rows, tuple(run.bad[:EXAMPLES]),
        twice_users, twice_items, run.types, tuple(run.notes),
    )  # fmt: skip
    return dataset, report


def _tables(spec: IngestSpec) -> dict[str, TableSpec]:
    given = {"interactions": spec.interactions, "users": spec.users, "items": spec.items}
    return {name: table for name, table in given.items() if table is not None}


def _read(run: _Run, name: str, table: TableSpec) -> RawTable:
    def report(fraction: float) -> None:
        run.progress(f"reading {name}", fraction)

    return read_raw(table.path, table.delimiter, table.encoding, table.quoting, report)


def _parse(run: _Run, name: str, raw: RawTable) -> pa.Table:
    """One table in Recpool's columns, bad rows dropped."""
    run.progress(f"checking {name}", 0.0)
    table_spec = _tables(run.spec)[name]
    roles = assign(name, raw.path, raw.table.column_names, run.spec.columns, table_spec.columns)
    columns = {part: _part(run, part, column, raw) for part, column in roles.parts.items()}
    columns |= _features(run, name, roles, raw)
    raw.audit.settle(run.spec.max_bad_share, run.spec.skip_bad)
    run.bad += raw.audit.first()
    run.bad_rows += raw.audit.bad
    if name == "interactions":
        columns.setdefault(VALUE, pa.nulls(len(raw.table), pa.float32()))
        columns.setdefault(TIME, pa.nulls(len(raw.table), pa.float64()))
    run.notes += [f"{raw.path.name}: column {column!r} is ignored" for column in roles.ignored]
    run.progress(f"checking {name}", 1.0)
    return pa.table(columns).filter(pa.array(raw.audit.keep))


def _part(run: _Run, part: str, column: str, raw: RawTable) -> pa.Array:
    """Parse the column that plays a part and reject the rows it cannot be read in."""
    cells = raw.table.column(column)
    if part == TITLE:
        return parsing.tokens(cells, column, missing=("",))
    if part in (USER_ID, ITEM_ID):
        values, wrong = parsing.ids(cells, column)
        rule = f"is not an id; give 1 to {parsing.MAX_ID_LENGTH} characters of text or a number"
    elif part == "hidden":
        values, wrong = parsing.flags(cells, column)
        rule = "is neither true nor false"
    elif part == VALUE:
        numbers, wrong = parsing.numbers(cells, column)
        values, rule = pa.array(numbers.astype(np.float32), from_pandas=True), "is not a finite number"
    else:
        seconds, wrong = parsing.times(cells, column, run.spec.time_unit)
        values, rule = pa.array(seconds, from_pandas=True), "is neither a unix time nor ISO 8601"
    if wrong.any():
        raw.audit.reject(wrong, column, cells, rule)
    return values


def _features(run: _Run, table: str, roles: Roles, raw: RawTable) -> dict[str, pa.Array]:
    """Parse feature and metadata columns, noting each verdict."""
    columns: dict[str, pa.Array] = {}
    entity = ENTITIES[table]
    for name, column in roles.features.items():
        verdict = _verdict(run, entity, name, raw.table.column(column), column)
        run.types[f"{entity}.{name}"] = f"{verdict.kind} ({verdict.reason})"
        kept = verdict.kind != "ignore" and (verdict.kind != "metadata" or entity == "item")
        if kept:
            columns[name] = _feature(run, entity, name, verdict, column, raw)
    return columns


def _verdict(run: _Run, entity: Entity, name: str, cells: pa.ChunkedArray, column: str) -> Inferred:
    declared = run.spec.types.get(f"{entity}.{name}") or run.spec.types.get(name)
    if declared:
        run.typed |= {f"{entity}.{name}", name}
        if declared == "multi" and entity == "context":
            raise DataError(f"types: context column {name!r} cannot be multi; declare it numeric or categorical")
        separator = _separator(run, name, cells, column) if declared == "multi" else None
        return Inferred(declared, "declared" + (f", joined by {separator!r}" if separator else ""), separator)
    if entity == "context":
        return Inferred("ignore", "declare its type to use it as request context")
    try:
        verdict = infer(cells, column)
    except DataError:
        return Inferred("ignore", f"holds {cells.type}")
    return verdict


def _separator(run: _Run, name: str, cells: pa.ChunkedArray, column: str) -> str:
    """The declared separator, else the first usual one that any cell holds."""
    if name in run.spec.separators:
        return run.spec.separators[name]
    array = parsing.plain(cells, column)
    if pt.is_list(array.type):
        return SEPARATORS[0]
    text = parsing.tokens(array, column)
    return next((s for s in SEPARATORS if pc.any(pc.match_substring(text, s)).as_py()), SEPARATORS[0])


def _feature(run: _Run, entity: Entity, name: str, verdict: Inferred, column: str, raw: RawTable) -> pa.Array:
    cells = raw.table.column(column)
    if verdict.kind == "numeric":
        run.fields.append(FeatureField(name=name, entity=entity, kind="numeric"))
        values, wrong = parsing.numbers(cells, column)
        if wrong.any():
            raw.audit.reject(wrong, column, cells, "is not a finite number; correct it or declare another type")
        return pa.array(values, from_pandas=True)
    if verdict.kind == "multi":
        separator = run.spec.separators.get(name) or verdict.separator or SEPARATORS[0]
        array = parsing.lists(cells, column, separator)
        most = pc.max(pc.list_value_length(array)).as_py() or 1
        run.fields.append(FeatureField(name=name, entity=entity, kind="multi", max_values=min(most, MOST_VALUES)))
        return array
    if verdict.kind == "categorical":
        run.fields.append(FeatureField(name=name, entity=entity, kind="categorical"))
    return parsing.tokens(cells, column)


def _refuse_unknown_types(run: _Run, raws: dict[str, RawTable]) -> None:
    known = sorted(run.types)
    for what, names in (("types", run.spec.types), ("separators", run.spec.separators)):
        unknown = [n for n in names if n not in run.types and not any(n == k.split(".", 1)[1] for k in known)]
        if unknown:
            raise DataError(f"{what}: no feature column {unknown}; the files have {known}")


def _entity(table: pa.Table | None, id_name: str, interactions: pa.Table) -> tuple[pa.Table, int]:
    """Rows of users or items: last of each id, then a bare row for every id only interactions have."""
    seen = pc.unique(interactions.column(id_name))
    if table is None:
        return pa.table({id_name: seen}), 0
    unique = _last_of_each(table, id_name)
    extra = seen.filter(pc.invert(pc.is_in(seen, unique.column(id_name).combine_chunks())))
    joined = pa.concat_tables([unique, pa.table({id_name: extra})], promote_options="default")
    return joined.combine_chunks(), len(table) - len(unique)


def _last_of_each(table: pa.Table, id_name: str) -> pa.Table:
    encoded = pc.dictionary_encode(table.column(id_name).combine_chunks())
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    _, from_end = np.unique(codes[::-1], return_index=True)
    return table.take(pa.array(np.sort(len(codes) - 1 - from_end)))


def _schema(run: _Run, interactions: pa.Table) -> FeatureSchema:
    threshold = run.spec.positive_at
    if threshold == "auto":
        threshold, rule = positive_at(interactions.column(VALUE).to_numpy())
        run.notes.append(f"positive_at {threshold if threshold is not None else 'absent'}: {rule}")
    missing = interactions.column(TIME).null_count
    if 0 < missing < len(interactions):
        run.notes.append(f"{missing} interactions have no time, so times count as absent")
    order: dict[str, int] = {"user": 0, "item": 1, "context": 2}
    fields = tuple(sorted(run.fields, key=lambda f: order[f.entity]))
    return FeatureSchema(fields=fields, history=HistorySpec(length=run.spec.history_length, positive_at=threshold))
