"""A small release, really trained: built, published, loaded, damaged, swapped. No Ray is needed for that."""

from __future__ import annotations

import asyncio
import shutil

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.worse_releases import raising, republish, returning_nothing, slow
from configs.errors import ArtifactError, ConfigError
from configs.settings import build_settings
from features.datasets import Dataset
from features.event_log import SqliteEventLog
from features.schema import FeatureSchema, HistorySpec
from features.store import open_store
from pool.repository import CHAMPION, ReleaseRepository
from ranking.store import RankStage
from serving.build import build_release
from serving.evaluation import evaluate
from serving.experiments.assignment import is_chosen
from serving.experiments.spec import Traffic
from serving.release import Release
from serving.schemas import RankRequest, RecommendRequest
from serving.service import Service

USERS, ITEMS, EVENTS = 60, 40, 1_500


def clicks(seed: int = 0) -> Dataset:
    """Two groups of users with a half of the catalogue each; nothing but ids, and odd ones."""
    random = np.random.default_rng(seed)
    users = random.integers(0, USERS, EVENTS)
    items = random.integers(0, ITEMS // 2, EVENTS) + (users % 2) * (ITEMS // 2)
    interactions = pa.table(
        {
            "user_id": [f"u/{u} é" for u in users],
            "item_id": [f"i {i}/ß" for i in items],
            "value": pa.nulls(EVENTS, pa.float32()),
            "time_s": pa.nulls(EVENTS, pa.float64()),
        }
    )
    return Dataset(
        "clicks",
        FeatureSchema(history=HistorySpec(length=30)),
        interactions,
        pa.table({"user_id": [f"u/{u} é" for u in range(USERS)]}),
        pa.table({"item_id": [f"i {i}/ß" for i in range(ITEMS)]}),
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    settings = build_settings({"home": folder, "dataset": "clicks"})
    version = build_release(clicks(), settings, "quick")
    ReleaseRepository(settings.releases_folder).point(CHAMPION, version)
    store = open_store(settings.store, settings.store_folder)
    store.load(clicks())
    store.close()
    return folder


@pytest.fixture
def settings(home, tmp_path):
    """A copy of the home, free to be damaged."""
    shutil.copytree(home, tmp_path / "home")
    return build_settings({"home": tmp_path / "home", "dataset": "clicks"})


@pytest.fixture
async def service(settings):
    service = Service(settings)
    await service.start()
    yield service
    await service.close()


def copy_release(settings, damage) -> str:
    """Publish the champion's files again, changed by ``damage(folder)``, with checksums that fit."""
    return republish(ReleaseRepository(settings.releases_folder), "1", damage)


async def test_people_are_recommended_what_their_group_likes(service):
    for user in (0, 1):
        request = RecommendRequest(user_id=f"u/{user} é", k=5, exclude_seen=False, timeout_ms=1_000)
        reply = await service.recommend(request)
        half = [int(item["id"].split()[1].split("/")[0]) // (ITEMS // 2) for item in reply["items"]]
        assert reply["degraded"] == []
        assert half.count(user) >= 4


async def test_concurrent_callers_each_get_what_they_would_get_alone(service):
    asks = [RecommendRequest(user_id=f"u/{u} é", k=4 + u, timeout_ms=1_000, dry_run=True) for u in range(6)]
    together = await asyncio.gather(*(service.recommend(ask) for ask in asks))
    for ask, reply in zip(asks, together, strict=True):
        alone = await service.recommend(ask)
        assert [item["id"] for item in reply["items"]] == [item["id"] for item in alone["items"]]
        scores = ([item["score"] for item in r["items"]] for r in (reply, alone))
        assert np.allclose(*scores, atol=1e-5)


async def test_a_deadline_too_short_for_anything_is_still_answered(service):
    reply = await service.recommend(RecommendRequest(user_id="u/1 é", k=3, timeout_ms=1))
    assert reply["returned"] == 3
    assert {"stage": "cascade", "reason": "timeout"} in reply["degraded"]


async def test_impressions_are_logged_unless_it_was_a_dry_run(service, settings):
    shown = await service.recommend(RecommendRequest(user_id="u/1 é", k=3, scene="home", timeout_ms=1_000))
    await service.recommend(RecommendRequest(user_id="u/1 é", k=3, dry_run=True))
    service._impressions.close()
    log = SqliteEventLog(settings.event_log_file)
    [logged] = log.read(0, 10)
    log.close()
    assert logged.event_id == shown["recommendation_id"]
    assert logged.payload["items"] == [item["id"] for item in shown["items"]]


async def test_scores_in_the_reply_are_those_of_the_trained_model(service, settings):
    """ONNX Runtime behind the service against torch on the saved weights."""
    release = Release.load(ReleaseRepository(settings.releases_folder), "1")
    stage = RankStage.load(release.folder, "fine", engine="torch")
    record = service._store.fetch(["u/3 é"])[0]
    users = release.encoder.encode_users([{"user_id": "u/3 é"}])
    items = release.encoder.item_ids.indices(record.items)
    users = users.with_history(*release.encoder.encode_histories([items], [np.array(record.values)]))
    wanted = [f"i {i}/ß" for i in range(8)]
    expected = stage.rank(users, release.encoder.item_ids.indices(wanted)[None, :])[0, :, 0]
    reply = await service.rank(RankRequest(user_id="u/3 é", item_ids=wanted, timeout_ms=1_000))
    found = {item["id"]: item["score"] for item in reply["items"]}
    assert np.allclose([found[i] for i in wanted], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda f: np.save(f / "recall" / "item_vectors.npy", np.zeros((9, 64), np.float32)), "item_vectors.npy"),
        (lambda f: (f / "models" / "fine_cross" / "1" / "model.onnx").write_bytes(b"no model"), "model.onnx"),
        (lambda f: np.save(f / "ranking" / "fine_items.npy", np.zeros((3, 3), np.float32)), "fine_items.npy"),
        (lambda f: (f / "encoder.json").write_text("{}"), "encoder.json"),
        (lambda f: (f / "recall" / "index.faiss").unlink(), "index"),
    ],
)
async def test_a_release_whose_parts_do_not_fit_is_refused_and_the_running_one_stays(service, settings, damage, named):
    version = copy_release(settings, damage)
    with pytest.raises(ArtifactError, match=named):
        await service.load(version)
    reply = await service.recommend(RecommendRequest(k=3, timeout_ms=1_000))
    assert reply["versions"]["release"] == "1" and reply["returned"] == 3


async def test_a_good_release_takes_over_whole(service, settings):
    version = copy_release(settings, lambda folder: None)
    await service.load(version)
    assert (await service.recommend(RecommendRequest(k=1)))["versions"]["release"] == version


def challenger(version: str, share: float = 0.5) -> Traffic:
    return Traffic.model_validate({"challenger": {"version": version, "share": share, "salt": "s"}})


async def ask(service, user: int | None = None, **more) -> dict:
    user_id = None if user is None else f"u/{user} é"
    return await service.recommend(RecommendRequest(user_id=user_id, k=5, timeout_ms=1_000, **more))


async def ask_in_full(service, user: int, **more) -> dict:
    """As `ask`, again where a busy machine took quality away."""
    for _ in range(100):
        reply = await ask(service, user, **more)
        if not reply["degraded"]:
            return reply
        await asyncio.sleep(0.05)
    raise AssertionError(reply["degraded"])


async def test_a_challenger_answers_the_users_of_its_share_and_nobody_else(service, settings):
    version = copy_release(settings, lambda folder: None)
    await service.divide(challenger(version))
    served = {user: (await ask(service, user))["versions"]["release"] for user in range(20)}
    assert served == {user: version if is_chosen(f"u/{user} é", "s", 0.5) else "1" for user in range(20)}
    assert (await ask(service))["versions"]["release"] == "1"
    chosen = sum(each == version for each in served.values())
    assert 0 < chosen < 20
    assert service.division.tallies["challenger"].requests == chosen
    service.undivide()
    assert {(await ask(service, user))["versions"]["release"] for user in range(20)} == {"1"}


async def test_a_challenger_that_becomes_champion_is_not_loaded_again(service, settings):
    version = copy_release(settings, lambda folder: None)
    await service.divide(challenger(version))
    loaded = service.division.sides["challenger"].live
    asked = [asyncio.create_task(ask(service, user)) for user in range(20)]
    await service.load(version)
    assert {(await each)["returned"] for each in asked} == {5}
    assert service.division.champion.live is loaded
    assert (await ask(service, 1))["versions"]["release"] == version


@pytest.mark.parametrize(("worse", "counted"), [(returning_nothing, "empty"), (raising, "broken")])
async def test_users_of_a_bad_challenger_get_the_champions_answer(service, settings, worse, counted):
    """What the release does wrong is counted against it, and none of it is seen by those who ask."""
    await service.divide(challenger(copy_release(settings, worse), share=1.0))
    replies = [await ask(service, user) for user in range(4)]
    assert {reply["versions"]["release"] for reply in replies} == {"1"}
    assert all(reply["returned"] == 5 for reply in replies)
    assert all(reply["degraded"] == [] for reply in replies)
    tally = service.division.tallies["challenger"]
    assert (tally.requests, getattr(tally, counted)) == (4, 4)
    assert service.division.tallies["champion"].requests == 0
    service.division.stop("seen enough")
    assert (await ask(service, 1))["degraded"] == []
    assert tally.requests == 4


async def test_a_slow_challenger_gives_the_same_answers(service, settings):
    """What `slow` adds to a model is time alone; how much of it is judged where time is measured."""
    usual = [[item["id"] for item in (await ask(service, user))["items"]] for user in range(3)]
    await service.divide(challenger(copy_release(settings, lambda folder: slow(folder, turns=2)), share=1.0))
    replies = [await ask(service, user) for user in range(3)]
    assert [[item["id"] for item in reply["items"]] for reply in replies] == usual
    assert {reply["versions"]["release"] for reply in replies} == {"2"}


async def test_a_release_that_cannot_be_loaded_gets_no_traffic_and_is_told_of(service, settings):
    version = copy_release(settings, lambda folder: (folder / "encoder.json").write_text("{}"))
    await service.divide(challenger(version, share=1.0))
    assert (await ask(service, 1))["versions"]["release"] == "1"
    assert "encoder.json" in service.division.report("r").missing[version]


async def test_a_shadow_is_asked_compared_and_leaves_no_trace(service, settings):
    version = copy_release(settings, lambda folder: None)
    await service.divide(Traffic.model_validate({"shadow": {"version": version}}))
    before = service.status()
    for user in range(6):
        assert (await ask(service, user))["versions"]["release"] == "1"
        while service._mirroring._task:
            await asyncio.sleep(0.001)
    tally = service.division.tallies["shadow"]
    assert (tally.requests, tally.overlap, tally.errors) == (6, 6.0, 0)
    assert service.status()["requests"] == before["requests"] + 6
    service._impressions.close()
    log = SqliteEventLog(settings.event_log_file)
    assert {each.payload["versions"]["release"] for each in log.read(0, 100)} == {"1"}
    assert len(log.read(0, 100)) == 6
    log.close()


async def test_an_arm_has_settings_of_its_own_and_exposures_are_recorded(service, settings):
    """One arm asks for popular items alone; their order then is that of the popular list, without any ranking."""
    popular = {name: {"quota": 100 if name == "popular" else 0} for name in ("ann", "item_to_item", "popular", "fresh")}
    arms = [{"name": "plain", "share": 0.5}, {"name": "popular", "share": 0.5, "recall": {"sources": popular}}]
    experiment = {"name": "pop", "scenes": ["home"], "arms": arms}
    await service.divide(Traffic.model_validate({"experiments": [experiment]}))
    seen = {}
    for user in range(12):
        reply = await ask_in_full(service, user, scene="home")
        seen[user] = {item["source"] for item in reply["items"]} == {"popular"}
        elsewhere = await ask_in_full(service, user, scene="cart")
        assert {item["source"] for item in elsewhere["items"]} != {"popular"}
    assert seen == {user: not is_chosen(f"u/{user} é", "pop", 0.5) for user in range(12)}
    service._impressions.close()
    log = SqliteEventLog(settings.event_log_file)
    parts = {(each.payload["scene"], each.user_id): each.payload["part"] for each in log.read(0, 100)}
    log.close()
    assert parts["home", "u/1 é"] == {"experiment": "pop", "arm": "popular" if seen[1] else "plain"}
    assert parts["cart", "u/1 é"] == {}


async def test_an_arm_that_does_not_fit_the_release_changes_nothing(service):
    arm = {"name": "a", "share": 1.0, "ranking": {"caps": {"colour": 2}}}
    with pytest.raises(ConfigError, match="colour"):
        await service.divide(Traffic.model_validate({"experiments": [{"name": "e", "arms": [arm]}]}))
    assert (await ask(service, 1))["returned"] == 5


def test_a_build_that_is_interrupted_leaves_nothing_to_see(settings):
    def interrupt(stage: str, share: float) -> None:
        if "coarse" in stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_release(clicks(1), settings, "quick", interrupt)
    assert ReleaseRepository(settings.releases_folder).versions() == ["1"]


def test_evaluation_measures_the_recall_stage_and_the_cascade():
    figures = evaluate(clicks(), "topn", "quick")
    assert 0 < figures["recall"]["ndcg@10"] <= 1 and 0 < figures["cascade"]["ndcg@10"] <= 1
