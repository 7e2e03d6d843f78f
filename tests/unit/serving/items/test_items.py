"""Changes of items: told one by one, durable, and seen by every release in the process soon."""

from __future__ import annotations

import gc
import time
from dataclasses import replace

import pytest

from configs.errors import Unavailable
from configs.settings import build_settings
from features.item_changes import ItemChange, ItemChanges
from features.live_catalogue import LiveCatalogue
from serving.items import following
from serving.items.following import follow
from serving.items.intake import ItemIntake
from serving.items.schemas import ChangesRequest
from serving.preparation import prepare_rank, prepare_recommend
from serving.schemas import RankRequest, RecommendRequest

WAIT_S = 20


@pytest.fixture
def settings(tmp_path):
    return build_settings({"home": tmp_path, "dataset": "tiny"})


@pytest.fixture
def make_live(make_release):
    def make():
        release = make_release()
        return replace(release, catalogue=LiveCatalogue(release.catalogue, release.encoder))

    return make


@pytest.fixture
def release(make_live):
    return make_live()


@pytest.fixture
def intake(settings, release):
    intake = ItemIntake(settings, lambda: release)
    yield intake
    intake.close()


async def take(intake, *changes):
    return await intake.take(ChangesRequest.model_validate({"changes": list(changes)}))


def until(holds) -> None:
    end_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.005)


async def test_right_changes_are_made_and_wrong_ones_are_refused_by_field(intake, settings):
    reply = await take(
        intake,
        {"item_id": "new", "fields": {"year": 1999, "genre": ["Drama"]}},
        {"item_id": "new", "fields": {"year": "soon"}},
        {"item_id": "new", "fields": {"colour": "red"}},
        {"item_id": "", "delete": True},
        {"delete": True},
        {"item_id": "new", "fields": {"year": 1}, "delete": True},
        {"item_id": "new", "gone": True},
        7,
        {"item_id": "item/3 é", "delete": True},
    )
    told = [(each["status"], each.get("field")) for each in reply["results"]]
    assert told == [
        ("accepted", None),
        ("refused", "fields.year"),
        ("refused", "fields.colour"),
        ("refused", "item_id"),
        ("refused", "item_id"),
        ("refused", "fields"),
        ("refused", "gone"),
        ("refused", "change"),
        ("accepted", None),
    ]
    assert (reply["accepted"], reply["refused"], reply["version"]) == (2, 7, 2)
    changes = ItemChanges(settings.item_changes_file)
    kept = changes.after(0)
    changes.close()
    assert [(state.item_id, state.deleted, state.fields) for state in kept] == [
        ("new", False, {"year": 1999, "genre": ["Drama"]}),
        ("item/3 é", True, {}),
    ]


async def test_without_a_release_nobody_knows_the_fields(settings):
    intake = ItemIntake(settings, lambda: None)
    with pytest.raises(Unavailable, match="not ready"):
        await take(intake, {"item_id": "new"})
    intake.close()


async def test_a_change_reaches_every_release_of_the_process(intake, settings, release, make_live):
    other = make_live()
    for each in (release, other):
        follow(settings, each)
    await take(intake, {"item_id": "new", "fields": {"year": 1999}}, {"item_id": "item/3 é", "delete": True})
    until(lambda: release.catalogue.version == other.catalogue.version == 2)
    ids = ["new", "item/3 é", "item/4 é"]
    assert [release.catalogue.index(i) for i in ids] == [other.catalogue.index(i) for i in ids]
    row = prepare_rank(RankRequest(item_ids=ids), release, 9e9)
    assert row.unknown == ("item/3 é",) and len(row.items) == 2
    assert prepare_recommend(RecommendRequest(seed_item_ids=["new"]), release, 9e9, 10).seeds.tolist() == [
        release.catalogue.index("new")
    ]


def test_a_release_that_is_loaded_later_begins_with_all_changes(settings, release):
    changes = ItemChanges(settings.item_changes_file)
    changes.apply([ItemChange(f"new{n}") for n in range(700)] + [ItemChange("item/0 é", delete=True)])
    changes.close()
    follow(settings, release)
    assert release.catalogue.version == 701  # at once: it may serve from now on
    assert not release.catalogue.eligible(0.0)[2]


def test_a_release_that_nobody_holds_is_not_followed(settings, make_live):
    follow(settings, make_live())
    gc.collect()
    follower = following._followers[settings.item_changes_file]
    until(lambda: follower._thread is None)


def test_changes_that_cannot_be_read_are_told_and_the_release_serves_as_it_is(settings, release, caplog):
    settings.item_changes_file.parent.mkdir(parents=True)
    settings.item_changes_file.write_bytes(b"not a database, but long enough to be read as one" * 9)
    follow(settings, release)
    assert "not applied" in caplog.text and len(release.catalogue) == release.catalogue.trained_rows
