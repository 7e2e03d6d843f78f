"""A catalogue with changes over it, as one moment saw it: what `features.catalogue` offers, for all items.

The release's items keep their indices, and items that it lacks have indices behind them, with holes where there
is none. Rows of changed items come from a small catalogue of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from configs.errors import InvalidRequest
from features.catalogue import MASKS_KEPT, Catalogue, frozen
from features.encoding import FIRST_KNOWN

RESERVED_TYPES = {"hidden": pa.bool_(), "available_from_s": pa.float64(), "expires_at_s": pa.float64()}
"""Columns that a release's items may lack and a change may set."""


class CatalogueSnapshot:
    """A base catalogue and what changed.

    Args:
        rows: of every array.
        changed: [m] item indices, ascending; the rows of ``delta`` behind its first two are of these.
        gone: [rows] bool, items that were deleted, and holes.
    """

    def __init__(self, base: Catalogue, rows: int, changed: np.ndarray, delta: Catalogue, gone: np.ndarray):
        assert len(delta) == len(changed) + FIRST_KNOWN and len(gone) == rows
        self._base, self._rows, self._changed, self._delta, self._gone = base, rows, changed, delta, gone
        self._places = dict(zip(changed.tolist(), range(FIRST_KNOWN, len(delta)), strict=True))
        self._eligible: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
        self._masks = lru_cache(MASKS_KEPT)(self._mask)
        self._codes: dict[str, np.ndarray] = {}

    def snapshot(self) -> CatalogueSnapshot:
        return self

    def __len__(self) -> int:
        return self._rows

    @property
    def fields(self) -> tuple[str, ...]:
        return self._base.fields

    def is_gone(self, index: int) -> bool:
        """Whether an item was deleted."""
        return bool(self._gone[index])

    def ids(self, indices: Sequence[int] | np.ndarray) -> list[str]:
        wanted: list[int] = np.asarray(indices).tolist()
        return [self._of(index).ids([self._place(index)])[0] for index in wanted]

    def metadata(self, indices: Sequence[int] | np.ndarray) -> list[dict[str, Any]]:
        wanted: list[int] = np.asarray(indices).tolist()
        own = [index for index in wanted if index in self._places]
        base = [index for index in wanted if index not in self._places]
        found = dict(zip(own, self._delta.metadata([self._places[index] for index in own]), strict=True))
        found |= dict(zip(base, self._base.metadata(base), strict=True))
        return [dict(found[index]) for index in wanted]

    def eligible(self, now_s: float) -> np.ndarray:
        base, delta = self._base.eligible(now_s), self._delta.eligible(now_s)
        cached = self._eligible
        if cached is None or cached[0] is not base or cached[1] is not delta:
            cached = self._eligible = base, delta, frozen(self._united(base, delta))
        return cached[2]

    def mask(self, expression: str) -> np.ndarray:
        return self._masks(expression)

    def codes(self, field: str) -> np.ndarray:
        if field not in self._codes:
            self._codes[field] = frozen(self._united_codes(field))
        return self._codes[field]

    def row(self, index: int) -> dict[str, Any] | None:
        """Raw values of an item; None where there is none."""
        if index in self._places:
            return self._delta.row(self._places[index])
        return self._base.row(index) if index < len(self._base) else None

    def _of(self, index: int) -> Catalogue:
        return self._delta if index in self._places else self._base

    def _place(self, index: int) -> int:
        return self._places.get(index, index)

    def _mask(self, expression: str) -> np.ndarray:
        base = self._base.mask(expression)
        try:
            delta = self._delta.mask(expression)
        except InvalidRequest:  # it suits the release's values; none of these few is like that
            delta = np.zeros(len(self._delta), bool)
        return frozen(self._united(base, delta))

    def _united(self, base: np.ndarray, delta: np.ndarray) -> np.ndarray:
        out = np.zeros(self._rows, bool)
        out[: len(base)] = base
        out[self._changed] = delta[FIRST_KNOWN:]
        out[self._gone] = False
        return out

    def _united_codes(self, field: str) -> np.ndarray:
        """Equal values have equal codes also where one is the release's and the other a change's."""
        base, known = self._base.codes(field), self._base.code_values(field)
        delta, named = self._delta.codes(field), self._delta.code_values(field)
        translated = np.zeros(len(named) + 1, np.int32)
        for place, value in enumerate(named, 1):
            translated[place] = known.setdefault(value, len(known) + 1)
        own = translated[delta[FIRST_KNOWN:]]
        shape = (self._rows, max(base.shape[1], own.shape[1])) if base.ndim == 2 else (self._rows,)
        out = np.zeros(shape, np.int32)
        out[: len(base), *(slice(n) for n in base.shape[1:])] = base
        out[self._changed] = 0
        out[self._changed, *(slice(n) for n in own.shape[1:])] = own
        return out


def delta_schema(base: pa.Schema) -> pa.Schema:
    """The columns of changed items: those of the release's, and the ones that decide eligibility."""
    for name, kind in RESERVED_TYPES.items():
        if name not in base.names:
            base = base.append(pa.field(name, kind))
    return base
