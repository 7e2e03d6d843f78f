"""Events become interactions once each; new users and items are known from then on."""

from __future__ import annotations

import pyarrow as pa
import pytest

from configs.settings import build_settings
from deployments.offline import absorb_events
from features.datasets import Dataset
from features.event_log import SqliteEventLog
from features.logged_interactions import absorb
from features.schema import FeatureField, FeatureSchema


@pytest.fixture
def dataset() -> Dataset:
    schema = FeatureSchema(
        fields=(
            FeatureField(name="age", entity="user", kind="numeric"),
            FeatureField(name="genre", entity="item", kind="multi"),
            FeatureField(name="hour", entity="context", kind="numeric"),
        )
    )
    interactions = pa.table(
        {"user_id": ["u1"], "item_id": ["i1"], "value": pa.array([4.0], pa.float32()), "time_s": [10.0], "hour": [3.0]}
    )
    users, items = pa.table({"user_id": ["u1"], "age": [30.0]}), pa.table({"item_id": ["i1"], "genre": [["Drama"]]})
    return Dataset("mine", schema, interactions, users, items)


@pytest.fixture
def settings(tmp_path, dataset):
    settings = build_settings({"home": tmp_path, "dataset": "mine"})
    dataset.save(settings.dataset_folder)
    return settings


@pytest.fixture
def log(settings):
    log = SqliteEventLog(settings.event_log_file)
    yield log
    log.close()


def event(number: int, kind: str, user: str | None, item: str = "i1", value: float | None = None) -> dict:
    payload = {"item_id": item, "value": value}
    return {"event_id": f"e{number}", "kind": kind, "time_s": 20.0 + number, "user_id": user, "payload": payload}


def test_what_users_did_is_added_in_the_datasets_own_columns(settings, log):
    log.append([event(1, "rating", "u1", "i2", 2.0), event(2, "click", "u2"), event(3, "click", None)])
    log.append([{"event_id": "shown", "kind": "impression", "time_s": 1.0, "user_id": "u1", "payload": {"items": []}}])
    found = absorb(settings.dataset_folder, log)
    assert (found.interactions, found.users, found.items, found.watermark) == (2, 1, 1, 4)
    grown = Dataset.load(settings.dataset_folder)
    assert grown.interactions.to_pylist()[1:] == [
        {"user_id": "u1", "item_id": "i2", "value": 2.0, "time_s": 21.0, "hour": None},
        {"user_id": "u2", "item_id": "i1", "value": None, "time_s": 22.0, "hour": None},
    ]
    assert grown.users.to_pylist() == [{"user_id": "u1", "age": 30.0}, {"user_id": "u2", "age": None}]
    assert grown.items.to_pylist()[1] == {"item_id": "i2", "genre": None}


def test_an_event_is_added_once_however_often_it_is_asked(settings, log):
    log.append([event(1, "click", "u1")])
    absorb(settings.dataset_folder, log)
    before = (settings.dataset_folder / "dataset.json").stat().st_mtime_ns
    assert absorb(settings.dataset_folder, log).interactions == 0
    assert (settings.dataset_folder / "dataset.json").stat().st_mtime_ns == before
    log.append([event(2, "like", "u1")])
    assert absorb(settings.dataset_folder, log).interactions == 1
    assert len(Dataset.load(settings.dataset_folder).interactions) == 3


def test_a_step_that_breaks_leaves_dataset_and_watermark_as_they_were(settings, log, monkeypatch):
    log.append([event(1, "click", "u1")])
    monkeypatch.setattr("features.datasets.pq.write_table", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        absorb(settings.dataset_folder, log)
    monkeypatch.undo()
    assert absorb(settings.dataset_folder, log).interactions == 1


def test_a_store_that_was_loaded_from_the_dataset_is_not_loaded_again(settings, log):
    from deployments.offline import ensure_store

    told: list[str] = []
    ensure_store(settings, lambda stage, share: told.append(stage))
    log.append([event(1, "click", "u1")])
    absorb_events(settings)
    told.clear()
    ensure_store(settings, lambda stage, share: told.append(stage))
    assert told == []
