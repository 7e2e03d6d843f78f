"""The Serve documents: what is committed is what `up` sends, and Serve's own schema takes it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from configs.settings import load_settings
from deployments.plan import make_plan
from deployments.rollout import serve_config

FOLDER = Path(__file__).parents[3] / "configs" / "serve"
FILES = sorted(FOLDER.glob("*.yaml"))


def document(profile: str, version: str | None = None, overrides: dict | None = None) -> dict:
    """What `up` sends for a profile on a machine without accelerators."""
    settings = load_settings(profile)
    return serve_config(profile, settings, make_plan(settings, {"CPU": 2.0}), version, overrides)


def read(file: Path) -> dict:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def test_there_is_a_document_for_every_plan_we_ship():
    assert {file.stem for file in FILES} >= {"default", "split"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_serve_accepts_the_document(file):
    parsed = ServeDeploySchema.model_validate(read(file))
    assert parsed.http_options.host == "127.0.0.1"
    assert not parsed.logging_config.enable_access_log


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_committed_document_is_the_one_that_up_sends(file):
    assert read(file) == document(file.stem)


def test_two_releases_differ_in_nothing_but_user_config():
    one, two = (document("split", version) for version in ("1", "2"))
    assert one != two
    for each in (one, two):
        for deployment in each["applications"][0]["deployments"]:
            del deployment["user_config"]
    assert one == two


def test_overrides_reach_the_app_builder():
    sent = document("default", "1", {"dataset": "mine"})
    assert sent["applications"][0]["args"] == {"profile": "default", "overrides": {"dataset": "mine"}}
