"""The learned split: it learns what pays, and leaves the planner alone whenever its guard says so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pool.policy.learned.bandit import SPLITS, BanditAllocator, SplitModel, context_of
from pool.policy.learned.settings import LearnedSettings
from pool.policy.learned.split import KEPT, Split, SplitSignals

SETTINGS = LearnedSettings()
CALM = SplitSignals(
    at_s=0.0,
    interval_s=10.0,
    arrived=1_000.0,
    violations=0.0,
    queued=0.0,
    busy=0.4,
    pressure=0.5,
    done_s={"finetune": 0.0, "warmup": 0.0},
    waiting={"finetune": 2, "warmup": 1},
    devices=4,
)


def taught(best="no fine-tuning", times=200, settings=SETTINGS):
    """A model that has seen one split bring 0.8 and the others 0.5, whatever the context."""
    rng, model = np.random.default_rng(0), SplitModel(settings)
    for at in range(times):
        for split in SPLITS:
            seen = replace(CALM, at_s=at * 900.0, pressure=rng.uniform(0, 1), busy=rng.uniform(0, 1))
            reward = (0.8 if split.name == best else 0.5) + rng.normal(0, 0.05)
            model.learn(split.name, context_of(seen), reward)
    return model


def test_what_was_better_is_chosen():
    allocator = BanditAllocator(taught(), SETTINGS, learning=False)
    assert allocator.decide(CALM).name == "no fine-tuning"
    assert not allocator.fallbacks


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (replace(CALM, pressure=0.95), "thin headroom"),
        (replace(CALM, queued=3.0), "thin headroom"),
    ],
)
def test_near_the_objective_the_planner_decides(seen, reason):
    allocator = BanditAllocator(taught(), SETTINGS, learning=False)
    assert allocator.decide(seen) == KEPT
    assert allocator.fallbacks == {reason: 1}


def test_what_was_hardly_seen_is_not_trusted():
    allocator = BanditAllocator(taught(times=1), SETTINGS, learning=False)
    assert allocator.decide(CALM) == KEPT
    assert allocator.fallbacks == {"unsure": 1}


def test_what_was_never_seen_is_not_trusted():
    allocator = BanditAllocator(SplitModel(SETTINGS), SETTINGS, learning=False)
    assert allocator.decide(CALM) == KEPT


def test_the_planner_needs_no_excuse_to_be_best():
    allocator = BanditAllocator(taught(best="planner"), SETTINGS, learning=False)
    assert allocator.decide(CALM) == KEPT
    assert not allocator.fallbacks


def test_while_it_learns_it_tries_every_split_and_ends_with_the_best():
    rng, model = np.random.default_rng(1), SplitModel(SETTINGS)
    allocator = BanditAllocator(model, SETTINGS, learning=True)
    done_s, chosen = 0.0, []
    for at in range(600):
        seen = replace(CALM, at_s=at * 10.0, done_s={"finetune": done_s, "warmup": 0.0})
        split = allocator.decide(seen)
        chosen.append(split.name)
        share = 0.9 if split.name == "small batches" else 0.4  # of four devices, for ten seconds
        done_s += (share + rng.normal(0, 0.05)) * 40
    assert set(chosen) == {split.name for split in SPLITS}
    assert chosen[-100:].count("small batches") > 80


def test_an_interval_is_worth_its_work_less_its_violations():
    allocator = BanditAllocator(SplitModel(SETTINGS), SETTINGS, learning=False)
    seen = replace(CALM, done_s={"finetune": 30.0, "warmup": 10.0}, violations=10.0)
    worth = allocator.reward_of(seen, {"finetune": 10.0, "warmup": 5.0})
    assert worth == pytest.approx((20 + 2 * 5) / 40 - 20 * 0.01)


def test_a_split_says_what_it_changes():
    split = Split("x", paused=frozenset({"finetune"}), factors={"warmup": 4.0}, rows_part=0.1)
    assert split.pauses("finetune") and not split.pauses("warmup")
    assert (split.factor_of("warmup"), split.factor_of("finetune")) == (4.0, 1.0)
    assert (split.rows_of(32), split.rows_of(1)) == (3, 1)
    assert KEPT.rows_of(32) == 32
