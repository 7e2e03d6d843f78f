"""The command line: errors become messages and exit codes, results lines or JSON."""

from __future__ import annotations

import json

import pytest

from deployments.cli_ingest import _pairs
from deployments.console import _Lines


def test_an_offline_error_is_a_message_on_standard_error_and_exit_code_2(run):
    code, out, err = run("train", "--dataset", "mine")
    assert (code, out) == (2, "")
    assert err.startswith("recpool: ")
    assert "recpool ingest" in err
    assert "Traceback" not in err


def test_an_option_wins_over_the_environment(run, monkeypatch):
    monkeypatch.setenv("RECPOOL_DATASET", "mine")
    _, _, err = run("train", "--dataset", "shop")
    assert "shop" in err
    assert "mine" not in err


def test_a_misspelt_variable_is_an_offline_error(run, monkeypatch):
    monkeypatch.setenv("RECPOOL_SERVNG__PORT", "1")
    code, _, err = run("down")
    assert code == 2
    assert "RECPOOL_SERVING__PORT" in err


def test_an_unknown_profile_lists_the_known_ones(run):
    code, _, err = run("up", "--profile", "nope")
    assert code == 2
    assert "default" in err
    assert "split" in err


def test_a_request_without_a_service_says_what_to_do(run, monkeypatch):
    monkeypatch.setenv("RECPOOL_SERVING__PORT", "1")
    code, _, err = run("recommend", "u1")
    assert code == 1
    assert "recpool up" in err


def test_releases_of_an_empty_home(run):
    assert run("release", "list", "--json") == (0, "[]\n", "")
    assert "recpool train" in run("release", "list")[1]
    assert run("release", "show", "3")[0] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--canary", "half"), "--canary half"),
        (("--canary", "0.5,0.1"), "shares must rise"),
        (("--hold-s", "0"), "--hold-s"),
        (("--begin-with", "middle"), "--begin-with"),
    ],
)
def test_a_rollout_that_cannot_be_is_refused_by_its_option(run, words, said):
    code, _, err = run("release", "rollout", "2", *words)
    assert (code, said in err) == (2, True), err


def test_a_rollout_without_a_service_says_what_to_do(run, monkeypatch):
    monkeypatch.setenv("RECPOOL_SERVING__PORT", "1")
    code, _, err = run("release", "rollout", "2")
    assert code == 1
    assert "recpool up" in err


def test_an_empty_home_has_nothing_to_promote_collect_or_report(run):
    assert run("release", "promote", "3")[0] == 1
    assert "recpool release promote" in run("release", "rollback")[2]
    assert run("release", "gc", "--json")[0] == 0
    assert "nobody has taken part" in run("experiment", "report", "colours")[2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- {name: e, arms: [{name: a, share: 2}]}", "experiments.0.arms.0.share"),
        ("- {name: e, arms: [{name: a, share: 1, ranking: {coarse_keep: 0}}]}", "experiments.e.a.ranking.coarse_keep"),
        ("{", "not a readable list"),
        ("- {name: e, arms: [{name: a, share: 1}]}", "recpool up"),
    ],
)
def test_experiments_are_refused_by_their_field_or_for_want_of_a_service(run, tmp_path, text, said):
    (tmp_path / "e.yaml").write_text(text)
    code, _, err = run("experiment", "apply", str(tmp_path / "e.yaml"))
    assert code in (1, 2)
    assert said in err
    assert run("experiment", "list") == (0, "no experiments\n", "")


def test_down_without_a_service_is_no_error(run):
    code, out, _ = run("down", "--json")
    assert code == 0
    assert json.loads(out) == {"ended": 0}


@pytest.mark.parametrize("words", [("--column", "item_id"), ("--column", "=sku")])
def test_a_pair_without_a_name_or_a_value_is_refused_by_option_and_text(run, words):
    code, _, err = run("ingest", "x.csv", *words)
    assert code == 2
    assert "--column" in err
    assert words[1] in err


def test_a_pair_may_hold_equal_signs_on_its_right():
    assert _pairs("separator", ["genre==", "tags=|"]) == {"genre": "=", "tags": "|"}


def test_a_wrong_field_of_an_ingest_spec_is_named(run, tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text("max_bad_share: 7\n")
    code, _, err = run("ingest", "x.csv", "--spec", str(spec))
    assert code == 2
    assert "max_bad_share" in err


def test_progress_away_from_a_terminal_is_one_line_at_each_end(capsys):
    report = _Lines()
    for fraction in (0.0, 0.2, 0.9, 1.0, 1.0):
        report("reading items", fraction)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == ["reading items ...", "reading items: done"]
