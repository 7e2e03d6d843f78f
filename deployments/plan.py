"""Where each stage runs and what that asks of Ray. Pure: the cluster's resources are an argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from configs.errors import ConfigError
from configs.settings import STAGES, Settings, StagePlan

GATEWAY = "gateway"
RAY_RESOURCE = {"cpu": "CPU", "gpu": "GPU", "npu": "NPU"}


def split_stages(settings: Settings) -> dict[str, StagePlan]:
    """Stages that run as their own deployment, in the funnel's order; one the plan does not name is fused."""
    plans: dict[str, StagePlan] = {**settings.plan.stages}
    return {stage: plans[stage] for stage in STAGES if stage in plans and not plans[stage].fused}


def choose_tier(stage: str, plan: StagePlan, resources: Mapping[str, float]) -> str:
    """The first tier of the plan that the cluster has enough of for one replica.

    Args:
        resources: what the cluster has in all, by Ray's names (``{"CPU": 2.0, "GPU": 1.0}``).
    Raises:
        ConfigError: no tier of the plan fits; names the stage, what it wants and what there is.
    """
    share = plan.share_milli / 1000
    for tier in plan.tier:
        if resources.get(RAY_RESOURCE[tier], 0) >= share:
            return tier
    there = {tier: resources.get(name, 0) for tier, name in RAY_RESOURCE.items()}
    raise ConfigError(
        f"plan: {stage} wants {share:g} of one of {list(plan.tier)}, the cluster has {there}; "
        f"add 'cpu' to its tier list as a fallback, or lower share_milli"
    )


def actor_options(tier: str, share_milli: int) -> dict[str, Any]:
    """Ray's options for one replica holding ``share_milli`` thousandths of a device of this tier.

    An accelerator replica asks for no cores: its host thread mostly waits, and a core it held would
    keep a CPU stage from being placed.
    """
    share = share_milli / 1000
    if tier == "cpu":
        return {"num_cpus": share}
    if tier == "gpu":
        return {"num_cpus": 0, "num_gpus": share}
    return {"num_cpus": 0, "resources": {RAY_RESOURCE[tier]: share}}


def replica_options(stage: str, plan: StagePlan, resources: Mapping[str, float]) -> dict[str, Any]:
    """Serve's options for a stage's deployment: how many replicas, and what each asks of Ray."""
    tier = choose_tier(stage, plan, resources)
    return {"num_replicas": plan.replicas, "ray_actor_options": actor_options(tier, plan.share_milli)}
