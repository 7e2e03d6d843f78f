"""Events and changes of items on a small release that was really trained: what users see follows at once."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.redis_server import RedisServer
from configs.settings import build_settings
from features.datasets import Dataset
from features.schema import FeatureField, FeatureSchema, HistorySpec
from features.store import open_store
from pool.repository import CHAMPION, ReleaseRepository
from ranking.recipes import QUICK, RECIPES
from serving.build import build_release
from serving.events.schemas import EventsRequest
from serving.items.schemas import ChangesRequest
from serving.schemas import RankRequest, RecommendRequest, SimilarRequest
from serving.service import Service

USERS, ITEMS, EVENTS = 60, 40, 2_000
EPOCHS = 20
"""Of the rankers: so few events make a few steps an epoch, and the tastes are to be learnt."""
WAIT_S = 30


def tastes() -> Dataset:
    """Two groups of users; each meets items of its own genre only."""
    random = np.random.default_rng(0)
    users = random.integers(0, USERS, EVENTS)
    items = random.integers(0, ITEMS // 2, EVENTS) * 2 + users % 2
    interactions = pa.table(
        {
            "user_id": [f"u{u}" for u in users],
            "item_id": [f"i{i}" for i in items],
            "value": pa.nulls(EVENTS, pa.float32()),
            "time_s": pa.array(1e9 + np.arange(EVENTS), pa.float64()),
        }
    )
    fields = (FeatureField(name="genre", entity="item", kind="categorical"),)
    return Dataset(
        "tastes",
        FeatureSchema(fields=fields, history=HistorySpec(length=30)),
        interactions,
        pa.table({"user_id": [f"u{u}" for u in range(USERS)]}),
        pa.table({"item_id": [f"i{i}" for i in range(ITEMS)], "genre": [f"g{i % 2}" for i in range(ITEMS)]}),
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A home with a champion and nothing else."""
    settings = build_settings({"home": tmp_path_factory.mktemp("live"), "dataset": "tastes"})
    schedules = {name: replace(getattr(QUICK, name), epochs=EPOCHS) for name in ("fine", "coarse")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RECIPES, "quick", replace(QUICK, **schedules))
        version = build_release(tastes(), settings, "quick")
    ReleaseRepository(settings.releases_folder).point(CHAMPION, version)
    return settings.home


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A Redis server that keeps what it acknowledges."""
    server = RedisServer(tmp_path_factory.mktemp("redis"), durable=True)
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module", params=["embedded", "redis"])
def settings(request, trained):
    """Store and event log of one kind, filled."""
    kinds = {}
    if request.param == "redis":
        url = request.getfixturevalue("server").url
        kinds = {"store": {"kind": "redis", "redis_url": url, "timeout_ms": 2_000}}
        kinds["events"] = {"log": "redis", "redis_url": url, "redis_timeout_ms": 5_000}
    settings = build_settings({"home": trained, "dataset": "tastes", **kinds})
    store = open_store(settings.store, settings.store_folder)
    store.load(tastes())
    store.close()
    return settings


@pytest.fixture
async def replicas(settings):
    """Two services on one home, as two gateways are."""
    services = [Service(settings) for _ in range(2)]
    for service in services:
        await service.start()
    yield services
    for service in services:
        await service.close()


async def ask(service, user: str = "u0", k: int = 5, **more) -> list[str]:
    """The items of a whole answer; a busy machine may need more than one try for it, which is no matter here."""
    request = RecommendRequest(user_id=user, k=k, timeout_ms=1_000, dry_run=True, **more)
    for _ in range(5):
        reply = await service.recommend(request)
        if not reply["degraded"]:
            break
    return [item["id"] for item in reply["items"]]


async def send(service, *events: dict) -> dict:
    return await service.events.take(EventsRequest.model_validate({"events": list(events)}))


async def change(replicas, *changes: dict) -> None:
    """Make changes by way of the first replica, and wait until all have seen them."""
    told = await replicas[0].items.take(ChangesRequest.model_validate({"changes": list(changes)}))
    assert told["refused"] == 0
    async with asyncio.timeout(WAIT_S):
        while any(each._releases.live.release.catalogue.version < told["version"] for each in replicas):
            await asyncio.sleep(0.02)


async def test_the_next_request_at_any_replica_sees_a_click_and_does_not_return_what_was_clicked(replicas):
    first = (await ask(replicas[0], "u2"))[0]
    told = await send(replicas[0], {"event_id": "c1", "kind": "click", "user_id": "u2", "item_id": first})
    assert told["accepted"] == 1 and told["degraded"] == []
    for service in replicas:
        assert first not in await ask(service, "u2", k=ITEMS)
        assert first in await ask(service, "u2", k=ITEMS, exclude_seen=False)


async def test_a_new_user_is_recommended_by_what_he_clicked_a_moment_ago(replicas):
    clicks = [{"event_id": f"n{i}", "kind": "click", "user_id": "new", "item_id": f"i{i}"} for i in (1, 3, 5, 7)]
    await send(replicas[0], *clicks)
    found = await ask(replicas[1], "new", k=5)
    assert sum(int(item[1:]) % 2 for item in found) >= 4


async def test_a_click_on_a_recommendation_is_joined_to_it_by_another_replica(replicas):
    shown = await replicas[0].recommend(RecommendRequest(user_id="u4", k=3, scene="home", timeout_ms=1_000))
    click = {"event_id": "j1", "kind": "click", "item_id": shown["items"][1]["id"]}
    told = await send(replicas[1], click | {"recommendation_id": shown["recommendation_id"]})
    assert told["results"][0]["status"] == "accepted", told
    kept = replicas[1].events._reader.find(["j1"])["j1"]
    assert (kept.user_id, kept.payload["position"], kept.payload["scene"]) == ("u4", 1, "home")
    assert kept.payload["versions"] == shown["versions"]


async def test_while_the_redis_server_is_away_answers_say_so_and_nothing_acknowledged_is_lost(trained, server):
    kinds = {"store": {"kind": "redis", "redis_url": server.url, "timeout_ms": 2_000}}
    service = Service(build_settings({"home": trained, "dataset": "tastes", **kinds}))
    await service.start()
    acknowledged: list[str] = []
    degraded: set[str] = set()

    async def click_on(number: int) -> None:
        event = {"event_id": f"r{number}", "kind": "click", "user_id": "away", "item_id": f"i{number % ITEMS}"}
        told = await send(service, event)
        acknowledged.append(event["item_id"])
        degraded.update(each["reason"] for each in told["degraded"])
        reply = await service.recommend(RecommendRequest(user_id="away", k=3, timeout_ms=1_000, dry_run=True))
        assert reply["returned"] == 3
        degraded.update(each["reason"] for each in reply["degraded"])

    await click_on(0)
    server.kill()
    for number in range(1, 6):
        await click_on(number)
    assert "store_unavailable" in degraded
    server.start()
    async with asyncio.timeout(WAIT_S):
        while set(acknowledged) & set(await ask(service, "away", k=ITEMS)):
            await asyncio.sleep(0.1)
    degraded.clear()
    await click_on(6)
    assert degraded == set()
    record = service._store.fetch(["away"])[0]
    assert sorted(record.items) == sorted(acknowledged)
    await service.close()


async def test_a_cold_item_goes_to_those_whose_taste_it_is_and_carries_what_was_said_of_it(replicas):
    items = [{"item_id": f"cold{n}", "fields": {"genre": f"g{n % 2}"}} for n in range(10)]
    await change(replicas, *items)
    for service in replicas:
        for group in (0, 1):
            found = [item for item in await ask(service, f"u{group}", k=ITEMS + 10) if item.startswith("cold")]
            assert len(found) == 10 == len(set(found))
            assert sum(int(item[4:]) % 2 == group for item in found[:5]) >= 4
    reply = await replicas[1].similar(SimilarRequest(item_ids=["cold1"], k=5, timeout_ms=1_000))
    assert reply["unknown_item_ids"] == [] and reply["returned"] == 5
    ranked = await replicas[1].rank(RankRequest(user_id="u1", item_ids=["cold0", "cold1"], timeout_ms=1_000))
    assert [item["id"] for item in ranked["items"]] == ["cold1", "cold0"]
    assert ranked["items"][0]["metadata"] == {"genre": "g1"}
    await change(replicas, *({"item_id": f"cold{n}", "delete": True} for n in range(10)))


async def test_a_new_item_that_was_consumed_is_not_returned_again(replicas):
    await change(replicas, {"item_id": "brand new", "fields": {"genre": "g0"}})
    assert "brand new" in await ask(replicas[1], "u6", k=ITEMS + 1)
    await send(replicas[0], {"event_id": "x1", "kind": "like", "user_id": "u6", "item_id": "brand new"})
    assert "brand new" not in await ask(replicas[1], "u6", k=ITEMS + 1)
    await change(replicas, {"item_id": "brand new", "delete": True})


async def test_deleted_and_hidden_items_are_returned_by_no_route_and_no_release_loaded_later(replicas, settings):
    await change(replicas, {"item_id": "i0", "delete": True}, {"item_id": "i2", "fields": {"hidden": True}})
    later = Service(settings)
    await later.start()
    for service in (*replicas, later):
        found = await ask(service, "nobody", k=ITEMS + 5)
        assert "i0" not in found and "i2" not in found and len(found) == len(set(found)) == ITEMS - 2
        alike = await service.similar(SimilarRequest(item_ids=["i4"], k=ITEMS, timeout_ms=1_000))
        assert not {"i0", "i2"} & {item["id"] for item in alike["items"]}
        own = await service.rank(RankRequest(item_ids=["i0", "i4"], timeout_ms=1_000))
        assert own["unknown_item_ids"] == ["i0"]
    await later.close()
    await change(replicas, {"item_id": "i0"}, {"item_id": "i2", "fields": {"hidden": None}})
    for service in replicas:
        assert {"i0", "i2"} <= set(await ask(service, "nobody", k=ITEMS))


async def test_filters_follow_changes(replicas):
    await change(
        replicas, {"item_id": "i4", "fields": {"genre": "g1"}}, {"item_id": "fresh", "fields": {"genre": "g7"}}
    )
    for service in replicas:
        assert await ask(service, "nobody", k=3, filter='genre == "g7"') == ["fresh"]
        assert "i4" not in await ask(service, "nobody", k=ITEMS, filter='genre == "g0"')
    await change(replicas, {"item_id": "i4", "fields": {"genre": "g0"}}, {"item_id": "fresh", "delete": True})


async def test_pages_never_repeat_an_item_while_the_catalogue_changes(replicas):
    seen, cursor, number = [], None, 0
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        request = RecommendRequest(k=7, cursor=cursor, timeout_ms=1_000, dry_run=True)
        reply = await replicas[number % 2].recommend(request)
        seen += [item["id"] for item in reply["items"]]
        cursor, number = reply["next_cursor"], number + 1
        if cursor is None:
            break
        await change(replicas, {"item_id": f"page{number}", "fields": {"genre": "g0"}})
    assert len(seen) == len(set(seen)) >= ITEMS
    await change(replicas, *({"item_id": f"page{n}", "delete": True} for n in range(1, number)))
