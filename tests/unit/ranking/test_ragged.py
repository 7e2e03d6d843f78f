"""A batch whose rows have different numbers of candidates: same scores as row by row, without padding few to many."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from features.encoding import UserBatch
from ranking.graphs import Outputs
from ranking.store import RankStage

ITEMS = 50
TABLE = np.random.default_rng(0).normal(size=(ITEMS, 3)).astype(np.float32)


class FakeUser:
    """A user's state is its first category."""

    def run(self, inputs):
        return {"state": inputs["user_cat"][:, :1].astype(np.float32)}


class FakeCross:
    """An item's objective is its vector's sum times the user's state; remembers the shapes it was called with."""

    def __init__(self):
        self.shapes = []

    def run(self, inputs):
        self.shapes.append(inputs["item_state"].shape[:2])
        return {"objectives": (inputs["item_state"].sum(2) * inputs["state"])[:, :, None]}


def batch(rows: int) -> UserBatch:
    cat = np.arange(1, rows + 1, dtype=np.int32)[:, None]
    history, signal = np.ones((rows, 1), np.int32), np.ones((rows, 1), np.int8)
    return UserBatch(cat, np.zeros((rows, 0), np.float32), np.zeros((rows, 0, 1), np.int32), history, signal)


def padded(widths: list[int], seed: int = 0) -> np.ndarray:
    items = np.random.default_rng(seed).integers(1, ITEMS, (len(widths), max(widths, default=0))).astype(np.int32)
    return np.where(np.arange(items.shape[1]) < np.array(widths)[:, None], items, 0)


def stage() -> tuple[RankStage, FakeCross]:
    cross = FakeCross()
    return RankStage(FakeUser(), cross, TABLE, Outputs(("like",))), cross


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(0, 99))
def test_every_row_scores_as_by_hand_and_padding_is_nan(widths, seed):
    ranker, cross = stage()
    items = padded(widths, seed)
    found = ranker.rank(batch(len(widths)), items)
    by_hand = TABLE[items].sum(2) * np.arange(1, len(widths) + 1, dtype=np.float32)[:, None]
    np.testing.assert_allclose(found[:, :, 0], np.where(items > 0, by_hand, np.nan), rtol=1e-5)
    assert all(shape[0] and shape[1] for shape in cross.shapes) or not items.size
    assert len(cross.shapes) <= 8


def test_rows_of_like_width_share_a_call_and_others_are_not_padded_to_them():
    ranker, cross = stage()
    ranker.rank(batch(6), padded([40, 6, 38, 0, 5, 40]))
    assert cross.shapes == [(3, 40), (2, 6)]


def test_rows_without_any_candidate_cost_no_call():
    ranker, cross = stage()
    assert np.isnan(ranker.rank(batch(2), np.zeros((2, 5), np.int32))).all()
    assert cross.shapes == []


def test_what_another_process_sent_may_be_read_only():
    ranker, _ = stage()
    items, users = padded([3, 3]), batch(2)
    found = ranker.rank(users, items)
    for array in (items, users.cat, users.history, users.signal):
        array.flags.writeable = False
    np.testing.assert_array_equal(ranker.rank(users, items), found)


def test_histories_are_cut_to_the_longest_of_the_batch():
    seen = []

    class Remembers(FakeUser):
        def run(self, inputs):
            seen.append((inputs["history"].shape, inputs["signal"].shape))
            return super().run(inputs)

    history = np.zeros((2, 9), np.int32)
    history[0, :4], history[1, :2] = 5, 6
    RankStage(Remembers(), FakeCross(), TABLE, Outputs(("like",))).rank(
        batch(2).with_history(history, (history > 0).astype(np.int8)), padded([3, 3])
    )
    assert seen == [((2, 4), (2, 4))]
