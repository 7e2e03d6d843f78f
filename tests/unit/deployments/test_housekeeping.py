"""What of the published releases may go, what was before, and how two differ."""

from __future__ import annotations

import json

import pytest

from configs.errors import Conflict, NotFound
from configs.settings import build_settings
from deployments.releases.housekeeping import collect, difference, rollback_target
from deployments.releases.promotion import promote, roll_back, undivided
from deployments.releases.served import with_choice
from pool.repository import CHALLENGER, CHAMPION, ReleaseRepository, open_releases

ABOUT = {"dataset": "tiny", "recipe": "test", "items": 1, "users": 1, "objectives": ("like",)}
FIELDS = [{"entity": "user", "name": "age", "kind": "numeric"}]


@pytest.fixture
def settings(tmp_path):
    return build_settings({"home": tmp_path, "dataset": "tiny"})


@pytest.fixture
def repository(settings):
    return open_releases(settings)


def publish(repository: ReleaseRepository, fields=FIELDS, text: str = "hello", **about) -> str:
    with repository.draft({**ABOUT, **about}) as draft:
        (draft.folder / "encoder.json").write_text(json.dumps({"schema": {"fields": fields}}))
        (draft.folder / "a.txt").write_text(text)
    return draft.version


def test_gc_leaves_the_newest_the_named_the_held_and_the_one_before_the_champion(repository):
    for _ in range(7):
        publish(repository)
    repository.point(CHAMPION, "1")
    repository.point(CHAMPION, "2")
    repository.point(CHALLENGER, "3")
    with repository.hold("4"):
        would = collect(repository, keep=1, dry_run=True)
        assert set(would.removed) == {"4", "5", "6"} and repository.versions() == list("1234567")
        done = collect(repository, keep=1)
    assert set(done.removed) == {"5", "6"} and done.freed_bytes > 0
    assert repository.versions() == ["1", "2", "3", "4", "7"]
    assert "in use by a running process" in done.kept["4"]
    assert "rollback" in done.kept["1"]


def test_gc_removes_what_was_written_by_half_and_does_not_count_it(repository):
    publish(repository)
    (repository.folder / "2").mkdir()
    assert set(collect(repository, keep=1).removed) == {"2"}
    assert repository.versions() == ["1"]


def test_a_difference_names_fields_metrics_features_and_files(repository):
    publish(repository, metrics={"valid_auc": {"fine": 0.7}})
    more = [*FIELDS, {"entity": "item", "name": "genre", "kind": "multi"}]
    publish(repository, more, "other", items=5, metrics={"valid_auc": {"fine": 0.8}, "loss": 1})
    found = difference(repository, "1", "2")
    assert found["fields"] == {"items": [1, 5]}
    assert found["metrics"] == {"valid_auc.fine": [0.7, 0.8], "loss": [None, 1]}
    assert found["features"] == {"item.genre": [None, "multi"]}
    assert found["files"] == {"added": [], "removed": [], "changed": ["a.txt", "encoder.json"]}


def test_rollback_returns_to_the_champion_before_and_says_why(settings, repository):
    publish(repository)
    publish(repository)
    with pytest.raises(NotFound, match="no release was champion before"):
        rollback_target(repository)
    promote(settings, "1")
    promote(settings, "2", reason="newer")
    done = roll_back(settings, "worse after all")
    assert (done.version, done.before, repository.champion()) == ("1", "2", "1")
    assert [(e.event, e.reason) for e in repository.history("1")] == [
        ("promoted", ""), ("rolled back to", "worse after all")
    ]  # fmt: skip
    with pytest.raises(Conflict, match="the champion already"):
        promote(settings, "1")


def test_a_choice_for_all_callers_keeps_experiments_and_ends_the_division():
    choice = {"version": "1", "traffic": {"challenger": {"version": "2"}, "shadow": {"version": "2"}}}
    assert undivided(choice, "2") == {"version": "2"}
    choice["traffic"]["experiments"] = [1]
    assert undivided(choice, "2") == {"version": "2", "traffic": {"experiments": [1]}}


def test_nothing_but_our_user_config_changes_in_what_serve_runs():
    ours = {"name": "recpool", "import_path": "m:a", "args": {"profile": "split"}, "deployments": [
        {"name": "gateway", "num_replicas": 2, "user_config": {"version": "1"}}, {"name": "fine", "user_config": {}}
    ]}  # fmt: skip
    other = {"name": "other", "import_path": "x:y", "deployments": [{"name": "gateway", "user_config": {"a": 1}}]}
    details = {
        "proxy_location": "HeadOnly",
        "http_options": {"host": "127.0.0.1", "port": 8001, "keep_alive_timeout_s": None},
        "controller_info": {"pid": 7},
        "applications": {"recpool": {"deployed_app_config": ours}, "other": {"deployed_app_config": other}},
    }
    sent = with_choice(details, {"version": "2"})
    assert sent["applications"][1] == other
    assert [each["user_config"] for each in sent["applications"][0]["deployments"]] == [{"version": "2"}] * 2
    assert sent["applications"][0]["deployments"][0]["num_replicas"] == 2
    assert (sent["proxy_location"], sent["http_options"]) == ("HeadOnly", {"host": "127.0.0.1", "port": 8001})
    assert "controller_info" not in sent
