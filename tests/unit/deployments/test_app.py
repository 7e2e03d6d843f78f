"""The application as it is composed: what every replica of it is told, whenever it starts."""

from __future__ import annotations

import pytest

from configs.settings import build_settings
from deployments.app import compose
from pool.repository import CHAMPION, ReleaseRepository


@pytest.mark.parametrize("promoted", [True, False])
def test_every_replica_is_told_what_the_champion_was_when_the_application_was_built(tmp_path, promoted):
    settings = build_settings({"home": tmp_path, "plan": {"stages": {"fine": {"fused": False}}}})
    if promoted:
        (settings.releases_folder / "3").mkdir(parents=True)
        ReleaseRepository(settings.releases_folder).point(CHAMPION, "3")
    # The one place in which Serve keeps what `bind` was given.
    gateway = compose(settings, {"CPU": 2.0})._bound_deployment
    fine = gateway.init_args[1]["fine"]._bound_deployment
    told = "3" if promoted else None
    assert (gateway.init_args[-1], fine.init_args[-1]) == (told, told)
    assert gateway.user_config == fine.user_config == {"version": None}
