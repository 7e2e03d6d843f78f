"""Settings: who wins, what is merged, and that nothing misspelt or malformed passes unnoticed."""

from __future__ import annotations

from typing import get_args

import pytest
import yaml

from configs.errors import ConfigError
from configs.settings import Objective, Settings, build_settings, load_settings
from deployments.app import AppArguments
from ranking.objectives import OBJECTIVES


@pytest.fixture
def profile(tmp_path):
    """Write a profile and return its path."""

    def write(**settings) -> str:
        file = tmp_path / "profile.yaml"
        file.write_text(yaml.safe_dump(settings))
        return str(file)

    return write


def test_overrides_win_over_the_environment_that_over_the_profile_that_over_the_defaults(profile, monkeypatch):
    path = profile(dataset="profile", ranking={"coarse_keep": 7, "threads": 2}, serving={"port": 1})
    monkeypatch.setenv("RECPOOL_DATASET", "environment")
    monkeypatch.setenv("RECPOOL_RANKING__COARSE_KEEP", "8")
    settings = load_settings(path, {"dataset": "override"})
    assert (settings.dataset, settings.ranking.coarse_keep, settings.ranking.threads) == ("override", 8, 2)
    assert load_settings(path).dataset == "environment"
    assert (settings.serving.port, settings.serving.host) == (1, Settings().serving.host)


def test_an_override_replaces_nothing_beside_it(profile):
    path = profile(ranking={"coarse_keep": 7})
    overrides = AppArguments(profile=path, overrides={"ranking": {"threads": 2}}).overrides
    ranking = load_settings(path, overrides).ranking
    assert (ranking.coarse_keep, ranking.threads) == (7, 2)


def test_one_entry_of_a_mapping_changes_and_the_others_stay(profile, monkeypatch):
    monkeypatch.setenv("RECPOOL_RECALL__SOURCES__ANN__QUOTA", "100")
    monkeypatch.setenv("RECPOOL_RANKING__WEIGHTS__LIKE", "0.5")
    before = Settings()
    settings = load_settings(
        profile(recall={"sources": {"fresh": {"timeout_ms": 9}}}, plan={"stages": {"fine": {"fused": False}}})
    )
    assert {name: source.quota for name, source in settings.recall.sources.items()} == {
        **{name: source.quota for name, source in before.recall.sources.items()},
        "ann": 100,
    }
    assert settings.recall.sources["fresh"].timeout_ms == 9
    assert settings.ranking.weights == {**before.ranking.weights, "like": 0.5}
    assert {name: stage.fused for name, stage in settings.plan.stages.items()} == {
        "recall": None,
        "coarse": None,
        "fine": False,
    }


def test_a_branch_may_be_given_as_json_and_a_variable_for_one_entry_wins_over_it(monkeypatch):
    monkeypatch.setenv("RECPOOL_RANKING__COARSE_KEEP", "9")
    monkeypatch.setenv("RECPOOL_RANKING", '{"coarse_keep": 5, "caps": {"Genre": 2}}')
    monkeypatch.setenv("RECPOOL_RANKING__CAPS__YEAR", "3")
    monkeypatch.setenv("RECPOOL_PLAN__GATEWAY__TIER", '["gpu", "cpu"]')
    settings = build_settings({})
    assert settings.ranking.coarse_keep == 9
    assert settings.ranking.caps == {"Genre": 2, "year": 3}
    assert settings.plan.gateway.tier == ("gpu", "cpu")


@pytest.mark.parametrize("text", ["abc", "{abc", '{"like": "much"}', "[1]"])
def test_a_malformed_value_is_refused_by_the_name_of_its_variable(monkeypatch, text):
    monkeypatch.setenv("RECPOOL_RANKING__WEIGHTS", text)
    with pytest.raises(ConfigError, match="RECPOOL_RANKING__WEIGHTS"):
        build_settings({})


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("RECPOOL_RANKIGN__COARSE_KEEP", "RECPOOL_RANKING__COARSE_KEEP"),
        ("RECPOOL_RECALL__SOURCES__AN__QUOTA", "RECPOOL_RECALL__SOURCES__ANN__QUOTA"),
        ("RECPOOL_RANKING__WEIGHTS__LIEK", "RECPOOL_RANKING__WEIGHTS__LIKE"),
        ("recpool_datset", "RECPOOL_DATASET"),
        ("RECPOOL_PORT", "RECPOOL_"),
    ],
)
def test_a_variable_that_names_no_setting_is_refused_with_the_closest_that_does(monkeypatch, wrong, right):
    monkeypatch.setenv(wrong, "5")
    with pytest.raises(ConfigError, match=rf"{wrong.upper()} is no setting; the closest is {right}"):
        build_settings({})


def test_a_misspelt_name_in_a_profile_or_an_override_is_refused(profile):
    with pytest.raises(ConfigError, match=r"ranking\.coarse_kep"):
        load_settings(profile(ranking={"coarse_kep": 5}))
    with pytest.raises(ConfigError, match="datset"):
        build_settings({}, {"datset": "x"})
    with pytest.raises(ConfigError, match=r"ranking\.weights"):
        build_settings({"ranking": {"weights": {"liek": 1}}})


def test_the_index_and_the_segments_can_be_chosen(monkeypatch):
    monkeypatch.setenv("RECPOOL_RECALL__INDEX__NPROBE", "4")
    recall = build_settings({"recall": {"index": {"factory": "IVF64,Flat"}, "segment_field": "age"}}).recall
    assert recall.index.model_dump() == {"factory": "IVF64,Flat", "nlist": None, "nprobe": 4, "refine": None}
    assert recall.segment_field == "age"


def test_the_objectives_that_can_be_weighted_are_those_that_ranking_knows():
    assert set(get_args(Objective)) == set(OBJECTIVES)
