"""Which column of a file plays which part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from configs.errors import DataError
from features.schema import ITEM_ID, RESERVED_ITEM_COLUMNS, TIME, USER_ID, VALUE

TITLE = "title"
ALIASES: dict[str, tuple[str, ...]] = {
    USER_ID: ("user_id", "userId", "userID", "user", "uid"),
    ITEM_ID: ("item_id", "itemId", "itemID", "item", "iid", "movieId"),
    VALUE: ("value", "rating", "score"),
    TIME: ("time_s", "timestamp", "time", "ts"),
    TITLE: ("title", "name"),
    **{name: (name,) for name in RESERVED_ITEM_COLUMNS},
}
"""Column names that need no mapping, first match wins."""

PARTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "interactions": ((USER_ID, ITEM_ID), (VALUE, TIME)),
    "users": ((USER_ID,), ()),
    "items": ((ITEM_ID,), (TITLE, *RESERVED_ITEM_COLUMNS)),
}
"""Required and optional parts of each table."""


@dataclass(frozen=True)
class Roles:
    """Parts by Recpool's name and features by their new name, both to the file's column."""

    parts: dict[str, str]
    features: dict[str, str]
    ignored: tuple[str, ...]


def assign(table: str, path: Path, found: list[str], shared: Mapping[str, str], own: Mapping[str, str]) -> Roles:
    """Give every column of a file its part.

    Args:
        table: interactions, users or items.
        found: the file's columns.
        shared, own: Recpool's name to the file's column, from the whole spec and from this table.
    Raises:
        DataError: a mapped or required column is not in the file; lists those that are.
    """
    required, optional = PARTS[table]
    parts = {}
    for part in (*required, *optional):
        column = _column(part, table, path, found, shared, own)
        if column is not None:
            parts[part] = column
        elif part in required:
            raise DataError(
                f"{path}: no column for {part}; say which it is with --column {part}=THEIR_COLUMN, or in a spec "
                f"file with {table}.columns: {{{part}: THEIR_COLUMN}}. The file has {found}"
            )
    return _with_features(parts, path, found, _renames(path, found, shared, own))


def check_shared(shared: Mapping[str, str], columns: Mapping[str, list[str]]) -> None:
    """Raises DataError when a mapping for all files names a column that none of them has."""
    for name, column in shared.items():
        if not any(column in found for found in columns.values()):
            listing = "; ".join(f"{path} has {found}" for path, found in columns.items())
            raise DataError(f"columns: {name!r} is mapped to {column!r}, which no file has. {listing}")


def _column(
    part: str, table: str, path: Path, found: list[str], shared: Mapping[str, str], own: Mapping[str, str]
) -> str | None:
    if part in own and own[part] not in found:
        raise DataError(f"{path}: {table}.columns maps {part!r} to {own[part]!r}; the file has {found}")
    wanted = own.get(part) or shared.get(part)
    if wanted in found:
        return wanted
    # Ids are called differently in each file, perhaps; values and times are in this one or nowhere.
    if wanted is not None and part in (VALUE, TIME):
        raise DataError(f"{path}: columns maps {part!r} to {wanted!r}; the file has {found}")
    taken = set(shared.values()) | set(own.values())
    return next((alias for alias in ALIASES[part] if alias in found and alias not in taken), None)


def _renames(path: Path, found: list[str], shared: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The file's column to a feature's new name."""
    for name, column in own.items():
        if column not in found:
            raise DataError(f"{path}: columns maps {name!r} to {column!r}; the file has {found}")
    both = {**shared, **own}
    return {column: name for name, column in both.items() if name not in ALIASES and column in found}


def _with_features(parts: dict[str, str], path: Path, found: list[str], renames: Mapping[str, str]) -> Roles:
    used = set(parts.values())
    features: dict[str, str] = {}
    ignored = []
    for column in found:
        name = renames.get(column, column)
        if column in used:
            continue
        if not name or len(name) > 128 or name in parts or name in (USER_ID, ITEM_ID):
            ignored.append(column)
        elif name in features:
            raise DataError(f"{path}: columns {features[name]!r} and {column!r} are both called {name!r}; rename one")
        else:
            features[name] = column
    return Roles(parts, features, tuple(ignored))
