"""What the cascade does with a row that may cost less than usual: the contract of `serving.quality.Limits`."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from serving.preparation import prepare_rank, prepare_recommend
from serving.priority import Priority
from serving.quality import FEWER_CANDIDATES, FULL, LADDER, POPULAR, SKIPPED, Limits
from serving.schemas import RankRequest, RecommendRequest

RECALL_ONLY = Limits(1.0, frozenset({"recall"}))
NO_FINE = Limits(0.5, frozenset({"recall", "coarse"}))
COUNT, KEEP = 40, 20
"""Candidates that the fake recall gives, and that coarse keeps; items are ranked by their index."""


def row(cascade, limits: Limits):
    deadline_s = time.monotonic() + 5
    return replace(prepare_recommend(RecommendRequest(k=3), cascade.release, deadline_s, 5), limits=limits)


def titles(cascade, slate) -> list[int]:
    return [int(i.split("/")[1].split(" ")[0]) for i in cascade.release.catalogue.ids(slate.items)]


def asked(stages, stage: str) -> list[list[int]]:
    """Candidates of each row, of each call."""
    return [(query.items > 0).sum(1).tolist() for name, query in stages.queries if name == stage]


async def test_full_limits_change_nothing(make_cascade, stages):
    cascade = make_cascade(coarse_keep=KEEP)
    [slate] = await cascade.recommend([row(cascade, FULL)])
    assert slate.trace.degraded == []
    assert (asked(stages, "coarse"), asked(stages, "fine")) == ([[COUNT]], [[KEEP]])


@pytest.mark.parametrize(("share", "coarse", "fine"), [(0.75, 30, 15), (0.5, 20, 10), (0.3, 12, 6), (0.01, 1, 1)])
async def test_a_share_of_the_candidates_reaches_each_ranker_and_is_flagged(make_cascade, stages, share, coarse, fine):
    cascade = make_cascade(coarse_keep=KEEP)
    [slate] = await cascade.recommend([row(cascade, Limits(share))])
    assert (asked(stages, "coarse"), asked(stages, "fine")) == ([[coarse]], [[fine]])
    assert slate.trace.degraded == [("coarse", FEWER_CANDIDATES), ("fine", FEWER_CANDIDATES)]
    # Recall gave its best first: the best of what coarse saw leads.
    assert titles(cascade, slate)[0] == coarse - 1
    assert len(slate.items) == 3


async def test_fine_rank_is_skipped_and_coarse_rank_decides(make_cascade, stages):
    cascade = make_cascade(coarse_keep=KEEP)
    [slate] = await cascade.recommend([row(cascade, NO_FINE)])
    assert asked(stages, "fine") == []
    assert slate.trace.degraded == [("coarse", FEWER_CANDIDATES), ("fine", SKIPPED)]
    assert titles(cascade, slate) == [19, 18, 17]


async def test_recall_order_only(make_cascade, stages):
    cascade = make_cascade(coarse_keep=KEEP)
    [slate] = await cascade.recommend([row(cascade, RECALL_ONLY)])
    assert (asked(stages, "coarse"), asked(stages, "fine")) == ([], [])
    assert slate.trace.degraded == [("coarse", SKIPPED), ("fine", SKIPPED)]
    assert titles(cascade, slate) == [0, 1, 2]


async def test_cached_popular_items_need_no_stage(make_cascade, stages):
    cascade = make_cascade()
    slate = cascade.fallback(row(cascade, LADDER[-1]), POPULAR)
    assert stages.queries == []
    assert slate.trace.degraded == [("cascade", POPULAR)]
    assert len(slate.items) == 3


async def test_each_row_of_a_batch_has_its_own_limits(make_cascade, stages):
    cascade = make_cascade(coarse_keep=KEEP)
    limits = [FULL, Limits(0.5), NO_FINE, RECALL_ONLY]
    together = await cascade.recommend([row(cascade, each) for each in limits])
    assert asked(stages, "coarse") == [[COUNT, 20, 20, 0]]
    assert asked(stages, "fine") == [[KEEP, 10, 0, 0]]
    alone = [(await cascade.recommend([row(cascade, each)]))[0] for each in limits]
    for one, other in zip(together, alone, strict=True):
        assert one.items.tolist() == other.items.tolist()
        assert one.trace.degraded == other.trace.degraded


@pytest.mark.parametrize("limits", LADDER[:-1])
async def test_rank_gives_all_of_the_callers_items_whatever_the_limits(make_cascade, limits):
    cascade = make_cascade()
    request = RankRequest(item_ids=[f"item/{n} é" for n in range(30)])
    prepared = replace(prepare_rank(request, cascade.release, time.monotonic() + 5), limits=limits)
    [slate] = await cascade.rank([prepared])
    assert sorted(titles(cascade, slate)) == list(range(30))
    assert bool(slate.trace.degraded) == (limits != FULL)


def test_a_row_is_of_normal_priority_and_full_quality_unless_told_otherwise(make_release):
    prepared = prepare_recommend(RecommendRequest(), make_release(), 0.0, 5)
    assert (prepared.priority, prepared.limits) == (Priority.NORMAL, FULL)
