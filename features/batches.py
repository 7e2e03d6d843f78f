"""Encoded rows: what `features.encoding.Encoder` makes and models read."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np


class _Rows:
    """Row operations that items and users share."""

    def take(self, rows: np.ndarray):
        """The rows at the given positions, as a new batch."""
        return type(self)(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})  # type: ignore[arg-type]


def _present(named: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Those of the model inputs that have columns; the schema lacks the other kinds of field."""
    return {name: array for name, array in named.items() if array.shape[1] > 0}


@dataclass(frozen=True)
class ItemBatch(_Rows):
    """Encoded items: cat [N, Gc] int32 (column 0 is the item id), num [N, Gn] float32, multi [N, Gm, L] int32."""

    cat: np.ndarray
    num: np.ndarray
    multi: np.ndarray

    def __len__(self) -> int:
        return len(self.cat)

    def inputs(self) -> dict[str, np.ndarray]:
        """Model inputs by name, without the kinds of field that the schema lacks."""
        return _present({"item_cat": self.cat, "item_num": self.num, "item_multi": self.multi})


@dataclass(frozen=True)
class ContextBatch:
    """Context of N interactions: cat [N, Kc] int32, num [N, Kn] float32, the last columns of a `UserBatch`."""

    cat: np.ndarray
    num: np.ndarray

    def take(self, rows: np.ndarray) -> ContextBatch:
        return ContextBatch(self.cat[rows], self.num[rows])


@dataclass(frozen=True)
class UserBatch(_Rows):
    """Encoded users with their request context.

    cat [B, Fc] int32 (column 0 is the user id, then profile, then context), num [B, Fn] float32
    (standardised), multi [B, Fm, L] int32, history [B, H] int32 item indices, most recent first,
    padded with 0, signal [B, H] int8 (0 padding, 1 negative, 2 positive or neutral).
    """

    cat: np.ndarray
    num: np.ndarray
    multi: np.ndarray
    history: np.ndarray
    signal: np.ndarray

    def __len__(self) -> int:
        return len(self.cat)

    def inputs(self) -> dict[str, np.ndarray]:
        """Model inputs by name, without the kinds of field that the schema lacks."""
        profile = _present({"user_cat": self.cat, "user_num": self.num, "user_multi": self.multi})
        return {**profile, "history": self.history, "signal": self.signal}

    def with_history(self, history: np.ndarray, signal: np.ndarray) -> UserBatch:
        return UserBatch(self.cat, self.num, self.multi, history, signal)
