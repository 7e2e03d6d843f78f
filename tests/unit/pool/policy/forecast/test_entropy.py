"""Request entropy against closed forms, and as a sign."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from pool.policy.forecast.entropy import EntropyWindow, RequestEntropy, collision_entropy

ZIPF = 1 / np.arange(1, 501)
ZIPF /= ZIPF.sum()


def requests(chance: np.random.Generator, many: int, hot: float = 0.0) -> np.ndarray:
    """Items by Zipf, and one item in a share of the requests."""
    items = chance.choice(500, many, p=ZIPF)
    items[chance.random(many) < hot] = 77
    return items


@pytest.mark.parametrize("many", [2_000, 20_000])
def test_entropy_is_that_of_the_distribution_however_many_requests_there_are(many):
    window = EntropyWindow(5.0, 4)
    window.add(1.0, requests(np.random.default_rng(1), many))
    assert window.entropy_nats() == pytest.approx(-math.log((ZIPF**2).sum()), abs=0.12)


def test_equally_wanted_keys_have_the_entropy_of_their_number():
    chance = np.random.default_rng(4)
    window = EntropyWindow(5.0, 4)
    window.add(1.0, chance.integers(0, 1_000_000, 1_000)[chance.integers(0, 1_000, 50_000)])
    assert window.entropy_nats() == pytest.approx(math.log(1_000), abs=0.1)


def test_one_key_alone_has_none_and_few_requests_say_nothing():
    window = EntropyWindow(5.0, 4)
    window.add(1.0, np.full(49, 3))
    assert window.entropy_nats() is None
    window.add(1.0, np.full(51, 3))
    assert window.entropy_nats() == pytest.approx(0.0, abs=1e-12)


def test_the_window_forgets_pane_by_pane():
    window = EntropyWindow(10.0, 3)
    for at_s, many in ((5.0, 100), (15.0, 10), (25.0, 1)):
        window.add(at_s, np.arange(many))
    seen = []
    for at_s in (25.0, 30.0, 45.0, 50.0, 1e9):
        window.move(at_s)
        seen.append(window.requests())
    assert seen == [111, 11, 1, 0, 0]


def test_counts_of_replicas_add_up():
    chance = np.random.default_rng(6)
    one, two, whole = EntropyWindow(5.0, 2), EntropyWindow(5.0, 2), EntropyWindow(5.0, 2)
    for window in (one, two):
        items = requests(chance, 1_000)
        window.add(1.0, items)
        whole.add(1.0, items)
    assert collision_entropy((one.counts + two.counts).sum(axis=0)) == whole.entropy_nats()


def first_sign_s(hot_from_s: float, growth: float, share: float) -> float | None:
    """When an event is noticed that makes traffic grow slowly and goes to one item."""
    chance, signs = np.random.default_rng(9), RequestEntropy(("item", "user"))
    for at_s in np.arange(0.0, 600.0, 5.0):
        event = at_s >= hot_from_s
        many = int(200 * (1 + growth if event else 1))
        users = chance.integers(0, 100_000, many)
        signs.add(at_s, {"item": requests(chance, many, share if event else 0.0), "user": users})
        found = signs.signs(at_s)
        assert not found[1].hot, "nothing changed among the users"
        if found[0].hot:
            return float(at_s)
    return None


def test_a_crowd_for_one_item_shows_before_the_rate_has_grown_by_a_third():
    noticed_s = first_sign_s(300.0, growth=0.3, share=0.3)
    assert noticed_s is not None and 300 <= noticed_s <= 360


@pytest.mark.parametrize("growth", [0.0, 2.0])
def test_more_traffic_of_the_usual_kind_is_no_sign(growth):
    assert first_sign_s(300.0, growth, share=0.0) is None


def test_saved_and_restored_it_goes_on_the_same():
    chance, signs = np.random.default_rng(7), RequestEntropy(("item",))
    for at_s in range(0, 100, 5):
        signs.add(at_s, {"item": requests(chance, 100)})
        signs.signs(at_s)
    restored = RequestEntropy.restored(json.loads(json.dumps(signs.plain())))
    more = requests(chance, 100, hot=0.8)
    for each in (signs, restored):
        each.add(101.0, {"item": more})
    assert restored.signs(101.0) == signs.signs(101.0)
