"""The declared feature schema: the one description that drives training and serving.

A schema lists fields of three entities (``user``, ``item`` and request ``context``) and how much
recent history a user row carries. Training and serving read it through the same
`features.encoding.Encoder`, so a row is encoded alike wherever it comes from.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Entity = Literal["user", "item", "context"]
Kind = Literal["id", "numeric", "categorical", "multi"]

USER_ID = "user_id"
ITEM_ID = "item_id"
VALUE = "value"
TIME = "time_s"
AVAILABLE_FROM = "available_from_s"
RESERVED_ITEM_COLUMNS = ("hidden", AVAILABLE_FROM, "expires_at_s")
"""Item columns that decide eligibility; they are never model features."""


class FeatureField(BaseModel):
    """One column: ``id`` and ``categorical`` hold one string, ``multi`` a list, ``numeric`` a number."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, max_length=128)
    entity: Entity
    kind: Kind
    max_values: int = Field(
        default=8, ge=1, le=256, description="values kept of a multi-valued field; later ones are cut"
    )


class HistorySpec(BaseModel):
    """How a user's past interactions enter the models."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    length: int = Field(default=200, ge=1, le=4096, description="most recent events a user row carries")
    positive_at: float | None = Field(
        default=None, description="value from which an event counts as positive; absent: every event does"
    )


class FeatureSchema(BaseModel):
    """All fields, in the order the encoded columns have.

    Raises:
        pydantic.ValidationError: two fields of one entity share a name, an ``id`` field is declared
            (the two ids are implied), or a context field is multi-valued.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    fields: tuple[FeatureField, ...] = ()
    history: HistorySpec = HistorySpec()

    @model_validator(mode="after")
    def _check(self) -> FeatureSchema:
        # User and context fields share one row when a request is encoded, so they share a namespace.
        names = [("item" if field.entity == "item" else "user", field.name) for field in self.fields]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"fields declared twice: {twice}; keep one of each")
        for field in self.fields:
            if field.kind == "id":
                raise ValueError(f"field {field.name!r}: the ids are implied, declare it categorical")
            if field.entity == "context" and field.kind == "multi":
                raise ValueError(f"context field {field.name!r} must be numeric or categorical")
        return self

    def of(self, *entities: Entity, kind: Kind) -> tuple[FeatureField, ...]:
        """Fields of the entities and kind, in column order (user before context)."""
        return tuple(f for entity in entities for f in self.fields if f.entity == entity and f.kind == kind)

    def names(self, entity: Entity) -> tuple[str, ...]:
        return tuple(f.name for f in self.fields if f.entity == entity)
