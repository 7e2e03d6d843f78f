"""Who gets which part of the traffic, what is allowed to differ, and when a release must go."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.stats import binomtest

from configs.errors import ConfigError
from configs.release_settings import RolloutLimits
from configs.settings import build_settings
from serving.experiments.assignment import arm_of, is_chosen, place_of
from serving.experiments.division import common_share, is_broken, is_empty
from serving.experiments.judge import CHANCE, breach, chance, highest_rate
from serving.experiments.spec import Experiment, Traffic, arm_settings
from serving.experiments.tally import Tally, total

USERS = [f"user/{n} é" for n in range(20_000)]
LIMITS = RolloutLimits()


def test_places_are_uniform():
    """Against the distribution function of the uniform distribution (Kolmogorov-Smirnov, 1% level)."""
    places = np.sort([place_of(user, "s") for user in USERS])
    ranks = np.arange(1, len(places) + 1) / len(places)
    assert np.abs(ranks - places).max() < 1.63 / math.sqrt(len(places))
    assert places[0] >= 0 and places[-1] < 1


def test_the_same_user_is_always_in_the_same_place():
    """Fixed values: another version of this would send users elsewhere."""
    assert place_of("u1", "salt") == place_of("u1", "salt")
    assert [round(place_of(user, "salt"), 6) for user in ("u1", "u2")] == [0.206712, 0.685951]


@given(st.floats(0, 1), st.floats(0, 1), st.text(max_size=20))
def test_a_share_that_grows_keeps_everybody_it_had(one, other, user):
    small, large = sorted((one, other))
    assert is_chosen(user, "s", large) or not is_chosen(user, "s", small)


def test_two_salts_divide_users_independently():
    a, b = ([is_chosen(user, salt, 0.5) for user in USERS] for salt in ("a", "b"))
    both = np.mean(np.logical_and(a, b))
    assert abs(both - 0.25) < 4 * math.sqrt(0.25 * 0.75 / len(USERS))


def test_arms_get_their_shares_and_nobody_is_in_two():
    shares = [0.1, 0.3, 0.2]
    arms = [arm_of(user, "x", shares) for user in USERS]
    for arm, share in enumerate(shares):
        assert abs(np.mean([found == arm for found in arms]) - share) < 4 * math.sqrt(share / len(USERS))
    assert abs(np.mean([found is None for found in arms]) - 0.4) < 4 * math.sqrt(0.4 / len(USERS))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "e", "arms": [{"name": "a", "share": 0.7}, {"name": "b", "share": 0.7}]}, "more than 1"),
        ({"name": "e", "arms": [{"name": "a", "share": 0.1}, {"name": "a", "share": 0.1}]}, "used twice"),
        ({"name": "e", "arms": []}, "at least 1"),
        ({"name": "../e", "arms": [{"name": "a", "share": 0.1}]}, "pattern"),
        ({"name": "e", "arms": [{"name": "a", "share": 2}]}, "less than or equal to 1"),
        ({"name": "e", "arms": [{"name": "a", "share": 1, "rcall": {}}]}, "rcall"),
    ],
)
def test_an_experiment_that_cannot_be_is_refused_by_its_field(fields, said):
    with pytest.raises(ValidationError, match=said):
        Experiment.model_validate(fields)


def test_versions_may_be_written_as_numbers_and_paths_are_no_versions():
    assert Traffic.model_validate({"challenger": {"version": 4, "share": 0.1}}).versions == ("4",)
    with pytest.raises(ValidationError, match="version"):
        Traffic.model_validate({"shadow": {"version": "../4"}})


def arm(**fields) -> Experiment:
    return Experiment.model_validate({"name": "e", "arms": [{"name": "a", "share": 1, **fields}]})


def test_an_arm_changes_what_it_states_and_nothing_else():
    settings = build_settings({"home": "nowhere"})
    experiment = arm(recall={"sources": {"ann": {"quota": 7}}}, ranking={"weights": {"like": 2.0}, "coarse_keep": 9})
    recall, ranking = arm_settings(settings, experiment, experiment.arms[0])
    assert recall.sources["ann"].quota == 7 and recall.sources["popular"] == settings.recall.sources["popular"]
    assert ranking.weights == {**settings.ranking.weights, "like": 2.0} and ranking.coarse_keep == 9
    assert arm_settings(settings, arm(), arm().arms[0]) == (settings.recall, settings.ranking)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"recall": {"candidates": 0}}, r"experiments\.e\.a\.recall\.candidates"),
        ({"recall": {"sources": {"magic": {}}}}, r"experiments\.e\.a\.recall\.sources"),
        ({"ranking": {"weight": {}}}, r"experiments\.e\.a\.ranking\.weight"),
        ({"ranking": {"engine": "torch"}}, r"ranking\.engine: holds for a whole replica"),
        ({"recall": {"index": {"nprobe": 2}}}, r"recall\.index: holds for a whole replica"),
    ],
)
def test_what_an_arm_may_not_change_is_refused_by_experiment_arm_and_field(fields, said):
    with pytest.raises(ConfigError, match=said):
        arm_settings(build_settings({"home": "nowhere"}), arm(**fields), arm(**fields).arms[0])


def answers(count: int, took_ms: float = 5.0, **bad: int) -> Tally:
    tally = Tally()
    for n in range(count):
        tally.answer(took_ms, **{name: n < bad.get(name, 0) for name in ("empty", "broken", "shed")})
    for _ in range(bad.get("errors", 0)):
        tally.error()
    return tally


@pytest.mark.parametrize(("hits", "of", "rate"), [(0, 10, 0.1), (1, 7, 0.02), (5, 5, 0.5), (40, 1000, 0.03)])
def test_the_chance_is_that_of_a_binomial_test(hits, of, rate):
    assert chance(hits, of, rate) == pytest.approx(binomtest(hits, of, rate, "greater").pvalue)


@pytest.mark.parametrize(("hits", "of"), [(1, 7), (5, 5), (40, 1000)])
def test_the_champions_highest_rate_is_the_end_of_the_exact_interval(hits, of):
    expected = binomtest(hits, of, alternative="less").proportion_ci(1 - CHANCE, method="exact").high
    assert highest_rate(hits, of) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("release", "said"),
    [
        (answers(10, empty=10), "empty: 10 of 10"),
        (answers(12, broken=12), "broken: 12 of 12"),
        (answers(0, errors=8), "errors: 8 of 8"),
        (answers(20, took_ms=400), "later than 100 ms"),
        (answers(10, shed=10), "later than 100 ms or shed: 10 of 10"),
        (answers(40, took_ms=40), "slow: median"),
    ],
)
def test_a_release_that_is_surely_worse_is_named_with_its_figures(release, said):
    assert said in (breach(answers(500), release, LIMITS) or "")


@pytest.mark.parametrize(
    "release",
    [answers(0), answers(50), answers(50, empty=1), answers(0, errors=1), answers(1, took_ms=400), answers(29, 40)],
)
def test_one_unlucky_answer_or_few_slow_ones_condemn_nobody(release):
    assert breach(answers(500), release, LIMITS) is None


def test_what_the_champion_does_as_well_is_no_fault_of_the_release():
    assert breach(answers(200, broken=100), answers(50, broken=25), LIMITS) is None
    assert breach(answers(200, took_ms=150), answers(50, took_ms=150), LIMITS) is None


def test_a_shadow_may_be_asked_to_be_like_the_champion():
    shadow, limits = answers(40), RolloutLimits(overlap=0.5)
    shadow.overlap = 0.2 * 40
    assert "unlike the champion: 20.0% common" in (breach(answers(40), shadow, limits, compared=True) or "")
    assert breach(answers(40), shadow, limits) is None
    assert breach(answers(40), shadow, LIMITS, compared=True) is None


@given(st.lists(st.floats(0.1, 2_000), min_size=1, max_size=50), st.floats(0.01, 1))
def test_quantiles_are_known_to_a_tenth(took_ms, share):
    tally = Tally()
    for each in took_ms:
        tally.answer(each, False, False)
    exact = sorted(took_ms)[math.ceil(share * len(took_ms) - 1e-9) - 1]
    found = tally.quantile_ms(share)
    assert found is not None and exact <= found <= max(0.5, exact * 1.1 * (1 + 1e-9))


def test_tallies_of_replicas_add_up():
    both = total([answers(3, empty=1), answers(4, errors=2)])
    assert (both.requests, both.empty, both.errors, sum(both.buckets)) == (9, 1, 2, 7)
    assert both.summary()["requests"] == 9


def test_only_a_stage_that_failed_makes_an_answer_broken():
    def told(reason: str) -> list[dict[str, str]]:
        return [{"stage": "fine", "reason": reason}]

    assert all(is_broken(told(reason)) for reason in ("failed", "timeout", "ArtifactError"))
    assert not any(is_broken(told(reason)) for reason in ("skipped", "fewer_candidates", "backfilled_popular"))
    assert not is_broken([])


def test_an_empty_answer_is_one_that_nobody_asked_for():
    assert is_empty({"returned": 0}, is_filtered=False)
    assert not is_empty({"returned": 0}, is_filtered=True)
    assert not is_empty({"returned": 1}, is_filtered=False)


def test_common_items_are_counted_whatever_their_order():
    def reply(*ids: str) -> dict:
        return {"items": [{"id": each} for each in ids]}

    assert common_share(reply("a", "b"), reply("b", "c")) == 0.5
    assert common_share(reply("a", "b"), reply("b", "a")) == 1
    assert (common_share(reply(), reply()), common_share(reply(), reply("a")), common_share(reply("a"), reply())) == (
        1,
        0,
        0,
    )
