"""Candidates through the stages that reorder them, against sorting each row's candidates one by one."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ranking.objectives import RECALL, Weighting
from serving.ranked import Ranked
from serving.types import Candidates

NAMES = ("engage", "like")
ALONE = Weighting.of(NAMES, {"engage": 1.0, "like": 0.5})
WITH_RECALL = Weighting.of((RECALL, *NAMES), {RECALL: 2.0, "engage": 1.0, "like": 0.5})
# Few values, so that scores are often equal, and none whose weighted sum is rounded.
VALUE = st.sampled_from([0.0, -0.0, 0.25, 0.5, 1.0, -1.0, math.nan, math.inf, -math.inf])
EVIDENCE = st.sampled_from([0.0, 0.5, 1.0, 2.0])


@st.composite
def batches(draw):
    """Widths [B], evidence [B, C] and the objectives [B, F, 2] of two stages, the second over fewer candidates."""
    widths = draw(st.lists(st.integers(0, 8), min_size=1, max_size=4))
    width = max(widths)
    first = draw(st.integers(0, width))
    second = draw(st.integers(0, first))

    def values(head: int, of, shape: tuple[int, ...]) -> np.ndarray:
        count = len(widths) * head * math.prod(shape)
        cells = draw(st.lists(of, min_size=count, max_size=count))
        return np.array(cells, np.float32).reshape(len(widths), head, *shape)

    return widths, values(width, EVIDENCE, ()), values(first, VALUE, (2,)), values(second, VALUE, (2,))


def recalled(widths: list[int], evidence: np.ndarray) -> Ranked:
    """Items 10, 11, ... in each row, the place of each being its source."""
    places = np.arange(evidence.shape[1])
    real = places < np.array(widths)[:, None]
    items = np.where(real, places + 10, 0).astype(np.int32)
    return Ranked.recalled(Candidates(items, np.where(real, evidence, 0), np.where(real, places, 0).astype(np.uint8)))


def by_hand(rows: list[dict], objectives: np.ndarray, recall_weight: float) -> list[dict]:
    """One row's candidates, best first, after a stage that gave the first F of them objectives [F, 2]."""
    found = []
    for place, (row, given_) in enumerate(zip(rows, objectives, strict=False)):
        score = recall_weight * row["evidence"] + float(given_[0]) + 0.5 * float(given_[1])
        found.append((place, score))
    scored = sorted((f for f in found if math.isfinite(f[1])), key=lambda f: (-f[1], f[0]))
    first = {place for place, _ in scored}
    out = [{**rows[place], "score": score, "settled": True} for place, score in scored]
    rest = [row if not scored else {**row, "settled": False} for at, row in enumerate(rows) if at not in first]
    return out + rest


def as_rows(ranked: Ranked) -> list[list[tuple]]:
    rows = ranked.rows(ranked.items > 0, [ranked.items.shape[1]] * len(ranked.items))
    return [
        list(zip(*(c.tolist() for c in (r.items, r.scores, r.sources, r.settled)), strict=True)) for r in rows
    ]  # fmt: skip


@given(batches())
def test_two_stages_order_as_sorting_by_hand_does(batch):
    widths, evidence, coarse, fine = batch
    ranked = recalled(widths, evidence).reordered(coarse, WITH_RECALL).reordered(fine, WITH_RECALL)
    for row, (said, width) in enumerate(zip(as_rows(ranked), widths, strict=True)):
        start = [
            {"item": p + 10, "source": p, "evidence": float(evidence[row, p]), "score": float(evidence[row, p])}
            for p in range(width)
        ]
        expected = by_hand([{**c, "settled": True} for c in start], coarse[row], 2.0)
        expected = by_hand(expected, fine[row], 2.0)
        assert said == [(c["item"], c["score"], c["source"], c["settled"]) for c in expected]


@given(batches())
def test_a_callers_own_items_are_ordered_by_the_objectives_alone(batch):
    widths, _, objectives, _ = batch
    items = recalled(widths, np.zeros((len(widths), max(widths)), np.float32)).items
    ranked = Ranked.given(items).reordered(objectives, ALONE)
    for row, (said, width) in enumerate(zip(as_rows(ranked), widths, strict=True)):
        start = [{"item": p + 10, "evidence": 0.0, "score": None, "settled": False} for p in range(width)]
        expected = by_hand(start, objectives[row], 0.0)
        assert [item for item, *_ in said] == [c["item"] for c in expected]
        assert [None if math.isnan(score) else score for _, score, *_ in said] == [c["score"] for c in expected]


@given(batches())
def test_objectives_stay_with_their_items(batch):
    widths, evidence, objectives, _ = batch
    ranked = recalled(widths, evidence).reordered(objectives, WITH_RECALL)
    for row, chosen in enumerate(ranked.rows(ranked.items > 0, [max(widths)] * len(widths))):
        assert chosen.objectives is not None and chosen.names == (RECALL, *NAMES)
        for item, values in zip(chosen.items.tolist(), chosen.objectives, strict=True):
            place = item - 10
            known = [evidence[row, place], *objectives[row, place]] if place < objectives.shape[1] else [np.nan] * 3
            np.testing.assert_array_equal(values, np.array(known, np.float32))


@given(batches(), st.data())
def test_no_more_than_the_wanted_usable_candidates_are_taken_in_order(batch, data):
    widths, evidence, *_ = batch
    ranked = recalled(widths, evidence)
    wanted = data.draw(st.lists(st.booleans(), min_size=ranked.items.size, max_size=ranked.items.size))
    usable = (ranked.items > 0) & np.array(wanted, bool).reshape(ranked.items.shape)
    most = data.draw(st.lists(st.integers(0, 9), min_size=len(widths), max_size=len(widths)))
    for row, chosen in enumerate(ranked.rows(usable, most)):
        assert chosen.items.tolist() == ranked.items[row][usable[row]].tolist()[: most[row]]
        assert chosen.objectives is None


def test_what_another_process_sent_may_be_read_only():
    found = Candidates(np.array([[3, 4]], np.int32), np.zeros((1, 2), np.float32), np.ones((1, 2), np.uint8))
    objectives = np.array([[[0.0, 0.0], [1.0, 0.0]]], np.float32)
    for array in (found.items, found.scores, found.sources, objectives):
        array.flags.writeable = False
    [(first, *_), (second, *_)] = as_rows(Ranked.recalled(found).reordered(objectives, WITH_RECALL))[0]
    assert (first, second) == (4, 3)
