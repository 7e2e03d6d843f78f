"""A batch is taken event by event: each is durable and in its user's history, or refused with a remedy."""

from __future__ import annotations

import asyncio

import pytest

from configs.errors import InvalidRequest
from configs.event_settings import EventSettings
from features.event_log import SqliteEventLog
from features.event_log_commits import GroupCommit
from serving.events.intake import EventIntake
from serving.events.schemas import EventsRequest
from tests.unit.serving.events.conftest import NOW_S

SHOWN = {"items": ["i1", "i2"], "scene": "home", "versions": {"release": "7"}}


def event(event_id="e1", **changes) -> dict:
    return {"event_id": event_id, "kind": "click", "user_id": "ann", "item_id": "i1"} | changes


async def take(intake, *events):
    return await intake.take(EventsRequest.model_validate({"events": list(events)}))


@pytest.fixture
def recommended(event_log):
    """A recommendation to ann, made ten seconds ago."""
    record = {"event_id": "r1", "kind": "impression", "time_s": NOW_S - 10, "user_id": "ann", "payload": SHOWN}
    event_log.append([record])
    return "r1"


async def test_what_is_accepted_is_in_the_log_and_in_the_history(intake, store, event_log):
    reply = await take(
        intake, event("a"), event("b", kind="rating", value=4, item_id="i9", time="2027-01-15T08:00:00Z")
    )
    assert (reply["accepted"], reply["duplicates"], reply["refused"], reply["degraded"]) == (2, 0, 0, [])
    assert store.rows["ann"] == {("i1", None, NOW_S), ("i9", 4.0, NOW_S)}
    kept = event_log.read()
    assert [(each.event_id, each.kind, each.time_s, each.user_id) for each in kept] == [
        ("a", "click", NOW_S, "ann"),
        ("b", "rating", NOW_S, "ann"),
    ]
    assert kept[1].payload["item_id"] == "i9" and kept[1].payload["value"] == 4.0


async def test_repeats_are_kept_once_within_a_batch_and_across_batches(intake, store, event_log):
    first = await take(intake, event("a"), event("a", item_id="i2"))
    again = await take(intake, event("a", item_id="i3"), event("b", time=NOW_S - 5))
    assert [each["status"] for each in first["results"]] == ["accepted", "duplicate"]
    assert [each["status"] for each in again["results"]] == ["duplicate", "accepted"]
    assert [each.event_id for each in event_log.read()] == ["a", "b"]
    assert store.rows["ann"] == {("i1", None, NOW_S), ("i1", None, NOW_S - 5)}


async def test_impressions_and_events_of_nobody_are_logged_and_enter_no_history(intake, store, event_log):
    reply = await take(intake, event("a", kind="impression"), event("b", user_id=None))
    assert reply["accepted"] == 2 and not store.rows and len(event_log.read()) == 2


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"event_id": ""}, "event_id", "at least 1"),
        ({"event_id": "x" * 257}, "event_id", "at most 256"),
        ({"kind": "view"}, "kind", "'impression', 'click', 'like' or 'rating'"),
        ({"item_id": 3}, "item_id", "string"),
        ({"user_id": "x" * 1025}, "user_id", "at most 1024"),
        ({"user": "ann"}, "user", "not permitted"),
        ({"value": 3.0}, "value", "leave it out"),
        ({"kind": "rating"}, "value", "send the rating"),
        ({"kind": "rating", "value": float("nan")}, "value", "finite"),
        ({"time": NOW_S + 61}, "time", "61 s ahead"),
        ({"time": NOW_S * 1000}, "time", "not ms"),
        ({"time": 0}, "time", "older than 365 days"),
        ({"time": float("nan")}, "time", "no date"),
        ({"time": 10**400}, "time", "no date"),
        ({"time": "2027-01-15T08:00:00"}, "time", "end it with Z"),
        ({"time": "2027-01-15T08:00:00+01:00"}, "time", "not in UTC"),
        ({"time": "yesterday"}, "time", "ISO 8601"),
        ({"recommendation_id": "r9"}, "recommendation_id", "was recorded"),
    ],
)
async def test_a_wrong_event_is_refused_by_field_and_the_rest_is_taken(intake, event_log, changes, field, said):
    reply = await take(intake, event("before"), event("wrong") | changes, event("behind"))
    assert (reply["accepted"], reply["refused"]) == (2, 1)
    refused = reply["results"][1]
    assert (refused["status"], refused["field"]) == ("refused", field) and said in refused["message"]
    assert [each.event_id for each in event_log.read()] == ["before", "behind"]


@pytest.mark.parametrize("wrong", [3, "x", None, [], {}])
async def test_what_is_no_event_at_all_is_refused_by_its_place(intake, wrong):
    reply = await take(intake, wrong, event())
    assert [each["status"] for each in reply["results"]] == ["refused", "accepted"]
    assert reply["results"][0]["event_id"] is None


async def test_a_batch_above_the_bound_is_refused_whole(intake, event_log):
    with pytest.raises(InvalidRequest, match="21 in one call; send at most 20"):
        await take(intake, *(event(str(n)) for n in range(21)))
    assert event_log.read() == []


async def test_an_event_is_joined_to_the_recommendation_that_showed_the_item(intake, store, event_log, recommended):
    reply = await take(intake, event("a", user_id=None, item_id="i2", recommendation_id=recommended))
    assert reply["accepted"] == 1
    kept = event_log.read()[-1]
    assert kept.user_id == "ann" and store.rows["ann"] == {("i2", None, NOW_S)}
    assert kept.payload["position"] == 1
    assert kept.payload["versions"] == {"release": "7"} and kept.payload["scene"] == "home"


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"item_id": "i3"}, "item_id"), ({"user_id": "bob"}, "user_id"), ({"time": NOW_S - 71}, "time")],
)
async def test_an_event_that_cannot_come_of_its_recommendation_is_refused(intake, recommended, changes, field):
    reply = await take(intake, event(recommendation_id=recommended) | changes)
    assert reply["results"][0]["field"] == field


async def test_an_impression_that_is_still_on_its_way_is_waited_for(tmp_path, store, clock, event_log):
    logs = [SqliteEventLog(tmp_path / "events.sqlite", clock=clock) for _ in range(2)]
    intake = EventIntake(EventSettings(join_wait_s=10), logs[0], GroupCommit(logs[1], store), clock)
    asked = asyncio.create_task(take(intake, event(recommendation_id="r2")))
    await asyncio.sleep(0.02)
    event_log.append([{"event_id": "r2", "kind": "impression", "time_s": NOW_S, "user_id": "ann", "payload": SHOWN}])
    assert (await asked)["accepted"] == 1
    intake.close()


async def test_a_reported_impression_is_no_recommendation(intake):
    await take(intake, event("seen", kind="impression"))
    reply = await take(intake, event("a", recommendation_id="seen"))
    assert reply["results"][0]["field"] == "recommendation_id"


async def test_callers_at_once_share_commits_and_get_their_own_answers(intake, event_log):
    replies = await asyncio.gather(*(take(intake, event(f"e{n}"), event(f"x{n % 5}")) for n in range(40)))
    assert all(reply["results"][0]["status"] == "accepted" for reply in replies)
    assert sum(reply["accepted"] for reply in replies) == 45 == len(event_log.read(limit=100))
    assert intake.status()["events_commits"] < 40


async def test_a_caller_who_leaves_harms_nobody(intake, event_log):
    asks = [asyncio.create_task(take(intake, event(f"e{n}"))) for n in range(30)]
    await asyncio.sleep(0)
    for ask in asks[::2]:
        ask.cancel()
    stayed = await asyncio.gather(*asks[1::2])
    assert all(reply["accepted"] == 1 for reply in stayed)
    assert {f"e{n}" for n in range(1, 30, 2)} <= {each.event_id for each in event_log.read()}
