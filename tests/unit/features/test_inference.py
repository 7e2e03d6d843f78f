"""Types are inferred conservatively: what might be text for people does not become a feature."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from features.inference import infer, positive_at

RNG = np.random.default_rng(0)
GENRES = ["Drama", "Comedy", "Sci-Fi", "War", "Film-Noir"]


def _combinations(separator: str) -> list[str]:
    return [separator.join(RNG.choice(GENRES, RNG.integers(1, 4), replace=False)) for _ in range(200)]


@pytest.mark.parametrize("separator", ["|", ",", " ", ";"])
def test_recurring_parts_in_many_combinations_are_a_list(separator):
    verdict = infer(pa.array(_combinations(separator)), "genre")
    assert (verdict.kind, verdict.separator) == ("multi", separator)


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1", "2.5", None, "-3e2"], "numeric"),
        (["04837", "10001", "55117"], "categorical"),
        (["M", "F", "M"], "categorical"),
        ([f"New {c}" for c in ("York", "Haven", "Delhi")] * 100, "categorical"),
        ([f"The long way home, part {n}" for n in range(300)], "metadata"),
        (
            ["An essay on the nature of things that were and were not, and of those between them"] * 2 + ["b"],
            "metadata",
        ),
        ([None, None], "metadata"),
        (["", "null"], "metadata"),
        ([True, False], "categorical"),
        ([1, 2], "numeric"),
        ([["a"], []], "multi"),
    ],
)
def test_columns_and_their_kinds(cells, kind):
    assert infer(pa.array(cells, pa.string() if cells == [None, None] else None), "c").kind == kind


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        ([1, 2, 3, 4, 5], 4),
        (np.arange(0.5, 5.5, 0.5), 4),
        (range(1, 11), 8),
        ([0, 1], 1),
        ([-1, 1], 1),
        ([1, 1], None),
        ([], None),
        ([float("nan")], None),
        (range(1001), 500),
    ],
)
def test_the_positive_threshold_of_a_scale(scale, expected):
    assert positive_at(np.array(list(scale), np.float64))[0] == expected
