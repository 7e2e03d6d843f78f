"""Known values of a field and the index each one has; statistics of a numeric field."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from configs.errors import ArtifactError

PADDING = 0
UNKNOWN = 1
FIRST_KNOWN = 2


@dataclass(frozen=True)
class NumericStats:
    """Train-time statistics of a numeric field; ``median`` stands in for a missing value."""

    median: float
    mean: float
    std: float


class Vocabulary:
    """String values to indices; unknown and missing values give `UNKNOWN`."""

    def __init__(self, values: Sequence[str]):
        self.values = list(values)
        self._index = {value: row for row, value in enumerate(self.values, FIRST_KNOWN)}
        if len(self._index) != len(self.values):
            repeated = [v for v, n in Counter(self.values).items() if n > 1][:3]
            raise ArtifactError(f"vocabulary holds values twice, for example {repeated}; rebuild the release")

    def __len__(self) -> int:
        """Rows of an embedding table over this vocabulary."""
        return len(self.values) + FIRST_KNOWN

    def index(self, value: Any) -> int:
        # Nearly all values are strings already.
        if type(value) is str:
            return self._index.get(value, UNKNOWN)
        return UNKNOWN if _is_missing(value) else self._index.get(as_token(value), UNKNOWN)

    def indices(self, values: Iterable[Any]) -> np.ndarray:
        """[n] int32."""
        return np.array(list(map(self.index, values)), np.int32)

    def value(self, index: int) -> str:
        """The value at a known index."""
        assert index >= FIRST_KNOWN
        return self.values[index - FIRST_KNOWN]


def as_token(value: Any) -> str:
    """The string a categorical value is looked up by: 1, 1.0 and "1" are one value, as are True and "true"."""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def vocabulary_of(columns: Iterable[list[Any]]) -> Vocabulary:
    """Values by falling frequency, ties by value, so the same data gives the same indices."""
    counts: Counter[str] = Counter()
    for column in columns:
        for value in column:
            if isinstance(value, list | tuple):
                counts.update(as_token(v) for v in value if not _is_missing(v))
            elif not _is_missing(value):
                counts[as_token(value)] += 1
    return Vocabulary([v for v, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))])


def numeric_stats(column: list[Any]) -> NumericStats:
    known = np.array([v for v in column if v is not None and math.isfinite(v)], np.float64)
    if not len(known):
        return NumericStats(0.0, 0.0, 1.0)
    return NumericStats(float(np.median(known)), float(known.mean()), float(known.std()) or 1.0)


def _is_missing(value: Any) -> bool:
    """None, or the NaN that stands for it in a column of floats."""
    return value is None or (isinstance(value, float | np.floating) and math.isnan(value))
