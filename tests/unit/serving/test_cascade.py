from __future__ import annotations

import time

import numpy as np
import pytest

from configs.errors import ConfigError, InvalidRequest, Unavailable
from serving.preparation import prepare_rank, prepare_recommend, prepare_similar
from serving.replies import build_reply
from serving.schemas import RankRequest, RecommendRequest, SimilarRequest


def ids(*numbers: int) -> list[str]:
    return [f"item/{n} é" for n in numbers]


def row(cascade, timeout_s: float = 5.0, **fields):
    return prepare_recommend(RecommendRequest(**fields), cascade.release, time.monotonic() + timeout_s, 5)


async def recommend(cascade, timeout_s: float = 5.0, **fields):
    prepared = row(cascade, timeout_s, **fields)
    [slate] = await cascade.recommend([prepared])
    return build_reply("r", prepared, slate, cascade.release, 0.0, 0.0, debug=True)


def given(reply) -> list[str]:
    return [item["id"] for item in reply["items"]]


def flags(reply) -> list[tuple[str, str]]:
    return [(d["stage"], d["reason"]) for d in reply["degraded"]]


async def test_fine_rank_decides_the_order_among_what_coarse_kept(make_cascade, stages):
    reply = await recommend(make_cascade(coarse_keep=10), k=5)
    # Recall gives items 0..39, coarse keeps the ten best, 30..39, fine orders them.
    assert given(reply) == ids(39, 38, 37, 36, 35)
    assert reply["degraded"] == []
    assert [query.items.shape[1] for name, query in stages.queries if name == "fine"] == [10]


async def test_an_absent_user_is_answered_and_flagged(make_cascade):
    reply = await recommend(make_cascade(), user_id="nobody")
    assert reply["returned"] == 5
    assert flags(reply) == [("features", "user_unknown")]


async def test_an_anonymous_user_is_nothing_unusual(make_cascade):
    assert flags(await recommend(make_cascade())) == []


async def test_seen_items_are_left_out_unless_asked_for(make_cascade, store):
    store.add("u1", ids(39, 38))
    cascade = make_cascade()
    assert given(await recommend(cascade, user_id="u1", k=2)) == ids(37, 36)
    assert given(await recommend(cascade, user_id="u1", k=2, exclude_seen=False)) == ids(39, 38)


async def test_what_was_just_seen_is_left_out_of_the_next_answer(make_cascade, store):
    cascade = make_cascade()
    store.add("u1", [])
    first = given(await recommend(cascade, user_id="u1", k=3))
    store.add("u1", first[:1])
    assert given(await recommend(cascade, user_id="u1", k=2)) == first[1:]


async def test_pages_never_repeat_an_item_and_end(make_cascade):
    cascade, cursor, shown = make_cascade(), None, []
    for _ in range(20):
        reply = await recommend(cascade, k=7, cursor=cursor)
        shown += given(reply)
        cursor = reply["next_cursor"]
        if cursor is None:
            break
    assert cursor is None
    assert len(shown) == len(set(shown)) == 60


async def test_pages_do_not_repeat_when_the_ranking_changes_between_them(make_cascade, stages):
    cascade = make_cascade()
    first = await recommend(cascade, k=5)
    stages.scores["fine"] = -np.arange(62, dtype=np.float32)
    second = await recommend(cascade, k=5, cursor=first["next_cursor"])
    assert not set(given(first)) & set(given(second))


@pytest.mark.parametrize("k", [60, 500])
async def test_k_beyond_the_catalogue_gives_the_whole_catalogue_once(make_cascade, k):
    reply = await recommend(make_cascade(), k=k)
    assert sorted(given(reply)) == sorted(ids(*range(60)))
    assert ("post", "backfilled_popular") in flags(reply)
    assert (("post", "fewer_than_k") in flags(reply)) == (k > 60)
    assert reply["next_cursor"] is None or k == 60


async def test_hidden_items_come_back_by_no_path(make_cascade, make_release, stages):
    cascade = make_cascade(make_release(hidden=(39, 59)))
    everything = given(await recommend(cascade, k=500))
    assert len(everything) == 58
    assert not set(ids(39, 59)) & set(everything)
    stages.failing["recall"] = RuntimeError("gone")
    assert not set(ids(39, 59)) & set(given(await recommend(cascade, k=500)))


async def test_a_filter_that_keeps_few_is_filled_from_all_that_match(make_cascade):
    reply = await recommend(make_cascade(), k=5, filter='year >= 2036 and "Drama" in genre')
    assert set(given(reply)) == set(ids(56, 57, 58, 59))
    assert ("post", "fewer_than_k") in flags(reply)


async def test_a_filter_that_keeps_nothing_gives_an_empty_flagged_slate(make_cascade):
    reply = await recommend(make_cascade(), filter="year > 3000")
    assert reply["items"] == [] and reply["returned"] == 0
    assert ("post", "fewer_than_k") in flags(reply)


async def test_zero_candidates_never_reach_a_model(make_cascade, stages):
    stages.count = 0
    reply = await recommend(make_cascade(), k=3)
    assert given(reply) == ids(59, 58, 57)
    assert [name for name, _ in stages.queries] == ["recall"]


async def test_an_empty_catalogue_is_answered_with_nothing(make_cascade, make_release, stages):
    stages.count = 0
    reply = await recommend(make_cascade(make_release(items=0)), k=3)
    assert reply["items"] == []


@pytest.mark.parametrize(
    ("stage", "order"), [("recall", (59, 58, 57)), ("coarse", (19, 18, 17)), ("fine", (39, 38, 37))]
)
async def test_a_failed_stage_is_done_without_and_named(make_cascade, stages, stage, order):
    stages.failing[stage] = RuntimeError("engine broke")
    reply = await recommend(make_cascade(), k=3)
    assert given(reply) == ids(*order)
    assert (stage, "failed") in flags(reply)


@pytest.mark.parametrize("stage", ["recall", "coarse", "fine"])
async def test_a_late_stage_is_done_without_inside_the_deadline(make_cascade, stages, stage):
    stages.delays_s[stage] = 30
    started = time.monotonic()
    reply = await recommend(make_cascade(), timeout_s=0.2, k=3)
    assert reply["returned"] == 3
    assert (stage, "timeout") in flags(reply)
    assert time.monotonic() - started < 5


async def test_a_deadline_already_past_is_answered_from_the_popular_items(make_cascade):
    reply = await recommend(make_cascade(), timeout_s=-1, k=3)
    assert given(reply) == ids(59, 58, 57)
    assert reply["items"][0]["source"] == "fallback"


async def test_non_finite_scores_sink_and_are_never_sent(make_cascade, stages):
    scores = np.arange(62, dtype=np.float32)
    scores[[41, 40]] = np.nan, np.inf
    stages.scores["fine"] = scores
    reply = await recommend(make_cascade(), k=40)
    assert given(reply)[:18] == ids(*range(37, 19, -1))
    assert given(reply)[18:20] == ids(39, 38)
    assert all(np.isfinite(item["score"]) for item in reply["items"])


async def test_a_row_without_time_costs_its_batch_mates_nothing(make_cascade, stages):
    cascade = make_cascade()
    asks = [row(cascade, k=3), row(cascade, timeout_s=-1, k=3), row(cascade, k=3)]
    patient, late, other = await cascade.recommend(asks)
    assert patient.trace.degraded == other.trace.degraded == []
    assert cascade.release.catalogue.ids(patient.items) == cascade.release.catalogue.ids(other.items) == ids(39, 38, 37)
    assert len(late.items) == 3 and ("fine", "skipped_for_deadline") in late.trace.degraded


async def test_a_hurried_row_does_not_hurry_the_stages_of_its_batch_mates(make_cascade, stages):
    stages.delays_s["recall"] = 0.1
    cascade = make_cascade()
    asks = [row(cascade, k=3), row(cascade, timeout_s=0.05, k=3)]
    patient, _ = await cascade.recommend(asks)
    assert patient.trace.degraded == []
    assert cascade.release.catalogue.ids(patient.items) == ids(39, 38, 37)


@pytest.mark.parametrize(
    ("ranking", "named"),
    [({"weights": {"recall": 1.0}}, "like"), ({"caps": {"color": 1}}, "color")],
)
def test_weights_and_caps_that_do_not_fit_the_release_are_refused_before_any_request(make_cascade, ranking, named):
    with pytest.raises(ConfigError, match=named):
        make_cascade(**ranking)


async def test_debug_counts_what_could_not_be_shown_by_its_first_cause(make_cascade, make_release):
    cascade = make_cascade(make_release(hidden=(0, 1)))
    reply = await recommend(cascade, filter="year >= 2000", exclude_item_ids=ids(59, 5), debug=True)
    assert reply["debug"]["removed"] == {"ineligible": 2, "filtered": 18, "excluded": 1}


async def test_reserves_never_overtake_what_fine_rank_scored(make_cascade, stages):
    stages.scores["coarse"] = np.arange(62, dtype=np.float32) * 1_000
    assert given(await recommend(make_cascade(coarse_keep=5), k=8)) == ids(39, 38, 37, 36, 35, 34, 33, 32)
    stages.scores["fine"] = -np.arange(62, dtype=np.float32)
    assert given(await recommend(make_cascade(coarse_keep=5), k=8)) == ids(35, 36, 37, 38, 39, 34, 33, 32)


async def test_rows_of_a_batch_equal_their_answers_alone(make_cascade, store):
    store.add("u1", ids(39))
    store.add("u2", ids(1, 2, 3))
    cascade = make_cascade()
    asks = [{"user_id": "u1", "k": 3}, {"user_id": "u2", "k": 9}, {"filter": "year < 1990", "k": 4}]
    together = await cascade.recommend([row(cascade, **ask) for ask in asks])
    for ask, slate in zip(asks, together, strict=True):
        [alone] = await cascade.recommend([row(cascade, **ask)])
        assert alone.items.tolist() == slate.items.tolist()
        assert alone.scores.tolist() == slate.scores.tolist()


async def test_a_store_that_is_down_or_late_is_imputed_and_flagged(make_cascade, store):
    store.add("u1", ids(39))
    store.error = Unavailable("connection refused")
    assert flags(await recommend(make_cascade(), user_id="u1")) == [("features", "store_unavailable")]
    store.error, store.delay_s = None, 1.0
    assert flags(await recommend(make_cascade(), user_id="u1")) == [("features", "store_timeout")]


async def test_a_stale_profile_is_imputed_and_flagged_but_still_excludes_what_was_seen(make_cascade, store):
    store.add("u1", ids(39), updated_at_s=0.0, age=33.0)
    reply = await recommend(make_cascade(stale_after_s=60), user_id="u1", k=1)
    assert flags(reply) == [("features", "profile_stale")]
    assert given(reply) == ids(38)


async def test_a_stored_value_that_fits_the_schema_no_more_is_imputed_and_flagged(make_cascade, store):
    store.add("u1", [], age="old", gender="F")
    reply = await recommend(make_cascade(), user_id="u1")
    assert flags(reply) == [("features", "profile_unreadable")] and reply["returned"] == 5


async def test_request_features_win_over_stored_ones(make_cascade, store, stages):
    store.add("u1", [], gender="F", age=20.0)
    await recommend(make_cascade(), user_id="u1", user_features={"gender": "M"})
    await recommend(make_cascade(), user_features={"gender": "M", "age": 20.0}, user_id="u1")
    stored, sent = (query.users for name, query in stages.queries if name == "recall")
    assert np.array_equal(stored.cat, sent.cat) and np.array_equal(stored.num, sent.num)


async def test_seeds_become_history_and_are_not_returned(make_cascade, stages):
    reply = await recommend(make_cascade(), seed_item_ids=ids(39, 38), k=1)
    assert given(reply) == ids(37)
    history = stages.queries[0][1].users.history[0]
    assert history.tolist() == [41, 40]


async def test_rank_orders_the_callers_items_and_names_the_unknown_ones(make_cascade):
    cascade = make_cascade()
    request = RankRequest(item_ids=[*ids(3, 7), "what?", *ids(5, 3)])
    prepared = prepare_rank(request, cascade.release, time.monotonic() + 5)
    [slate] = await cascade.rank([prepared])
    reply = build_reply("r", prepared, slate, cascade.release, 0.0, 0.0, debug=False)
    assert given(reply) == [*ids(7, 5, 3), "what?"]
    assert reply["unknown_item_ids"] == ["what?"]
    assert reply["items"][-1]["score"] is None


def test_without_any_stage_there_is_still_an_answer(make_cascade):
    cascade = make_cascade()
    slate = cascade.fallback(row(cascade, k=3, exclude_item_ids=ids(58)))
    assert cascade.release.catalogue.ids(slate.items) == ids(59, 57, 56)
    assert slate.trace.degraded == [("cascade", "timeout")]
    own = prepare_rank(RankRequest(item_ids=ids(3, 7)), cascade.release, 0.0)
    assert cascade.release.catalogue.ids(cascade.fallback(own).items) == ids(3, 7)


async def test_rank_of_unknown_items_alone_is_answered(make_cascade):
    cascade = make_cascade()
    prepared = prepare_rank(RankRequest(item_ids=["a", "b"]), cascade.release, time.monotonic() + 5)
    [slate] = await cascade.rank([prepared])
    assert build_reply("r", prepared, slate, cascade.release, 0, 0, debug=False)["unknown_item_ids"] == ["a", "b"]


async def test_similar_never_returns_the_seed(make_cascade):
    cascade = make_cascade()
    prepared = prepare_similar(SimilarRequest(item_ids=ids(0), k=3), cascade.release, time.monotonic() + 5, 5)
    [slate] = await cascade.similar([prepared])
    assert cascade.release.catalogue.ids(slate.items) == ids(1, 2, 3)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"user_features": {"agee": 3}}, "user_features.agee"),
        ({"user_features": {"age": "old"}}, "user_features.age"),
        ({"user_features": {"gender": ["F"]}}, "user_features.gender"),
        ({"context": {"minute": 3}}, "context.minute"),
        ({"cursor": "nonsense"}, "cursor"),
        ({"filter": "yeer > 3"}, "filter"),
    ],
)
def test_wrong_input_names_the_field_before_anything_runs(make_cascade, fields, field):
    with pytest.raises(InvalidRequest) as caught:
        row(make_cascade(), **fields)
    assert caught.value.field == field
    assert field.split(".")[-1] in caught.value.message
