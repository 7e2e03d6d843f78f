"""On the real MovieLens-1M the protocols keep as many rows as the set-ups they follow."""

from __future__ import annotations

import numpy as np
import pytest

from features import movielens
from features.datasets import Dataset
from features.ingest import ingest
from features.protocols import LIKE_AT, core, ctr_random, ctr_time, topn


@pytest.fixture(scope="module")
def rated(tmp_path_factory) -> Dataset:
    """The data set, downloaded (13 MB) into a cache of its own."""
    return ingest(movielens.spec(movielens.fetch(tmp_path_factory.mktemp("cache"))))[0]


def test_the_data_set_is_whole(rated):
    assert (len(rated.interactions), len(rated.users), len(rated.items)) == (1_000_209, 6_040, 3_883)


def test_ctr_random_drops_the_neutral_rows(rated):
    assert ctr_random(rated).rows == 739_012


def test_ctr_time_takes_a_core_and_tests_on_what_training_knows(rated):
    users, items = (
        np.unique(rated.interactions.column(name).to_numpy(), return_inverse=True)[1] for name in ("user_id", "item_id")
    )
    kept = core(users, items, 5, counted=rated.values >= LIKE_AT)
    split = ctr_time(rated)
    assert kept.sum() == 994_338
    assert kept[np.concatenate([split.train, split.valid, split.test])].all() and split.rows < 994_338
    assert set(users[split.test]) <= set(users[split.train])


def test_topn_takes_a_core_of_liked_rows(rated):
    assert topn(rated).rows == 834_449
