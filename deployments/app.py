"""The Serve application: ``serve run deployments.app:build_app profile=default``.

One gateway, and a deployment of its own for every stage that the plan does not fuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.schema import LoggingConfig

from configs.settings import Settings, load_settings
from deployments.autoscaling import start_autoscaler
from deployments.gateway import Gateway
from deployments.plan import Placement, make_plan, replica_options, replica_settings
from deployments.pool import start_pool
from deployments.routing import StageRouter
from deployments.stages import Stage
from pool.repository import open_releases

# The gateway admits or refuses by itself; Serve's own limit only has to stay out of the way.
MAX_ONGOING_REQUESTS = 1_000
HEALTH_CHECK_PERIOD_S = 2.0
# Three misses in a row replace a replica, so a machine that is merely busy for 10 s loses none.
HEALTH_CHECK_TIMEOUT_S = 10.0
GRACEFUL_SHUTDOWN_S = 10.0


class AppArguments(BaseModel):
    """Arguments of the app builder. The release version is no argument: changing it must restart nothing."""

    model_config = ConfigDict(extra="forbid")

    profile: str = Field("default", description="name below configs/profiles, or path of a .yaml file")
    overrides: dict[str, Any] = Field({}, description="settings that win over the profile and the environment")


def build_app(arguments: dict[str, Any]) -> serve.Application:
    """Compose the application of a profile for the cluster this runs on; `AppArguments` has the arguments."""
    checked = AppArguments.model_validate(arguments)
    settings = load_settings(checked.profile, checked.overrides)
    start_pool(settings)
    start_autoscaler(settings)
    return compose(settings, cluster_resources())


def cluster_resources() -> Mapping[str, float]:
    """What the connected cluster has; one core when there is none, as in ``serve build``."""
    return ray.cluster_resources() if ray.is_initialized() else {"CPU": 1.0}


def compose(
    settings: Settings,
    resources: Mapping[str, float],
    version: str | None = None,
    stage: type = Stage,
    gateway: type = Gateway,
) -> serve.Application:
    """Bind the deployments of a settings tree.

    Args:
        resources: what the cluster has in all, by Ray's names.
        version: the release to serve; absent: what is the champion now.
        stage, gateway: what the replicas run; a benchmark brings subclasses that can be broken at will.
    """
    # Replicas start in another folder than the one a relative home was meant from.
    settings = settings.model_copy(update={"home": settings.home.absolute()})
    # Named once for all: a replica that starts after a promotion serves what the others serve.
    champion = open_releases(settings).champion()
    user_config = {"version": version}
    plan = make_plan(settings, resources)
    handles = {
        each.name: _deployment(stage, each, user_config).bind(
            each.name, each.tier, replica_settings(settings, each), champion
        )
        for each in plan.stages
        if not each.fused
    }
    front = _deployment(gateway, plan.gateway, user_config)
    return front.bind(replica_settings(settings, plan.gateway), handles, plan.tiers, champion)


def _deployment(kind: type, placement: Placement, user_config: dict[str, Any]) -> serve.Deployment:
    wrap = serve.deployment(
        name=placement.name,
        user_config=user_config,
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        health_check_period_s=HEALTH_CHECK_PERIOD_S,
        health_check_timeout_s=HEALTH_CHECK_TIMEOUT_S,
        graceful_shutdown_timeout_s=GRACEFUL_SHUTDOWN_S,
        request_router_config=_router(kind),
        logging_config=LoggingConfig(enable_access_log=False),
        **replica_options(placement),
    )
    return wrap(kind)


def _router(kind: type) -> RequestRouterConfig:
    """Calls of stages go where their `RemoteStage` says; HAProxy routes to the gateway, not Serve."""
    arguments: dict[str, Any] = {"request_router_class": StageRouter} if issubclass(kind, Stage) else {}
    return RequestRouterConfig(**arguments)
