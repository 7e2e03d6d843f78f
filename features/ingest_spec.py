"""What to ingest and what came of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from features.inference import Kind
from features.row_audit import BadRow

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class TableSpec(BaseModel):
    """One input file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Path
    columns: dict[str, str] = Field(
        default_factory=dict, description="Recpool's name to the file's column; wins over the spec's columns"
    )
    delimiter: str | None = Field(
        default=None, min_length=1, max_length=1, description="absent: guessed from the header"
    )
    encoding: str = Field(default="utf-8", description="text encoding; Parquet ignores it")
    quoting: bool = Field(default=True, description='cells may be quoted with "')


class IngestSpec(BaseModel):
    """Files, the meaning of their columns, and how much dirt is tolerated.

    A file may be given as a bare path. Without a mapping the columns in
    `features.ingest_columns.ALIASES` are recognised by name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(pattern=NAME, description="dataset name")
    interactions: TableSpec
    users: TableSpec | None = None
    items: TableSpec | None = None
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="Recpool's name to the files' column, for all files: user_id, item_id, value, time_s, "
        "title, hidden, available_from_s, expires_at_s, or a new name for a feature",
    )
    types: dict[str, Kind] = Field(
        default_factory=dict,
        description="overrides the inferred type, by column name or user.NAME, item.NAME, context.NAME; "
        "further columns of the interactions become request context only when typed here",
    )
    separators: dict[str, str] = Field(
        default_factory=dict, description="what joins the values of a multi-valued column, by column name"
    )
    positive_at: float | None | Literal["auto"] = Field(
        default="auto",
        description="value from which an event is positive; auto: three quarters up the scale; null: all are",
    )
    time_unit: Literal["auto", "s", "ms", "us", "ns"] = Field(default="auto", description="unit of numeric timestamps")
    history_length: int = Field(default=200, ge=1, le=4096, description="most recent events a user row carries")
    max_bad_share: float = Field(0.01, ge=0, le=1, description="share of bad rows in a file above which it is refused")
    skip_bad: bool = Field(default=False, description="drop bad rows however many they are")

    @field_validator("interactions", "users", "items", mode="before")
    @classmethod
    def _path(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str | Path) else value


@dataclass(frozen=True)
class IngestReport:
    """What ingest kept, dropped and decided.

    ``types`` maps ``item.genre`` and the like to the type taken; ``notes`` are sentences for a person;
    ``bad`` holds the first bad rows only, ``bad_rows`` counts all.
    """

    rows: int
    users: int
    items: int
    bad_rows: int
    bad: tuple[BadRow, ...]
    duplicate_users: int
    duplicate_items: int
    types: dict[str, str]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """The report as text."""
        lines = [f"{self.rows:,} interactions, {self.users:,} users, {self.items:,} items"]
        lines += [f"  {column}: {kind}" for column, kind in self.types.items()]
        lines += [f"  note: {note}" for note in self.notes]
        if self.bad_rows:
            lines.append(f"  {self.bad_rows:,} bad rows were dropped; the first:")
            lines += [f"    {row}" for row in self.bad]
        return lines
