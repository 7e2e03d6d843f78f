"""A small release, really trained: built, published, loaded, damaged, swapped. No Ray is needed for that."""

from __future__ import annotations

import asyncio
import shutil

import numpy as np
import pyarrow as pa
import pytest

from configs.errors import ArtifactError
from configs.settings import build_settings
from features.datasets import Dataset
from features.event_log import SqliteEventLog
from features.schema import FeatureSchema, HistorySpec
from features.store import open_store
from pool.repository import CHAMPION, ReleaseRepository
from ranking.store import RankStage
from serving.build import build_release
from serving.evaluation import evaluate
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
    repository = ReleaseRepository(settings.releases_folder)
    about = repository.manifest("1").model_dump(exclude={"format", "version", "created_at_s", "files"})
    with repository.draft(about) as draft:
        shutil.copytree(repository.path("1"), draft.folder, dirs_exist_ok=True)
        (draft.folder / "manifest.json").unlink()
        damage(draft.folder)
    return draft.version


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
