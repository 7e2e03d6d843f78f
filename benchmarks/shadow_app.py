"""The real application, whose replicas can be told to start without warming up: for `benchmarks.shadow` alone.

``python -m benchmarks.shadow_app up`` is ``recpool up`` that serves this application.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray import serve

from configs.settings import Settings, load_settings
from deployments import cli, rollout
from deployments.app import AppArguments, cluster_resources, compose
from deployments.gateway import Gateway
from deployments.pool import start_pool


def cold_file(home: Path) -> Path:
    """A replica that starts while this file is there stays cold."""
    return home / "run" / "cold"


class ColdableGateway(Gateway):
    async def __init__(self, settings: Settings, *args: Any, **kwargs: Any):  # as Serve's wrapper has it
        self._is_cold = cold_file(settings.home).exists()
        if self._is_cold:
            settings = unwarmed(settings)
        await super().__init__(settings, *args, **kwargs)  # pyright: ignore[reportGeneralTypeIssues]

    async def check_health(self) -> None:
        """A cold one is asked nothing at all before its first caller: Serve's checks would warm it, too."""
        if not self._is_cold:
            await super().check_health()


def unwarmed(settings: Settings) -> Settings:
    """As ``plan.gateway.warm: false`` in the profile."""
    gateway = settings.plan.gateway.model_copy(update={"warm": False})
    return settings.model_copy(update={"plan": settings.plan.model_copy(update={"gateway": gateway})})


def build_app(arguments: dict[str, Any]) -> serve.Application:
    """As `deployments.app.build_app`."""
    checked = AppArguments.model_validate(arguments)
    settings = load_settings(checked.profile, checked.overrides)
    start_pool(settings)
    return compose(settings, cluster_resources(), gateway=ColdableGateway)


if __name__ == "__main__":
    rollout.IMPORT_PATH = "benchmarks.shadow_app:build_app"
    cli.main()
