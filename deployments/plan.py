"""The plan: where each stage runs, why, and what that asks of Ray. Pure: the cluster's resources are an argument.

A stage on the gateway's tier is fused into the gateway's replica, since a call to another process would
only add a hop to the same device. A stage on another tier becomes a deployment of its own behind a
handle. A profile may say otherwise (``fused``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from configs.errors import ConfigError
from configs.plan_settings import STAGES, DeploymentPlan, StagePlan, Tier
from configs.settings import Settings

GATEWAY = "gateway"
RAY_RESOURCE: dict[Tier, str] = {"cpu": "CPU", "gpu": "GPU", "npu": "NPU"}
SPARE_REPLICAS = 2
"""Replicas of what does not say how many: one can be lost while the other answers."""
MOST_GATEWAYS = 8
"""Gateways that are derived at most. Each holds a release of its own; whoever has the memory can state more."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Placement:
    """Where the gateway or one stage runs.

    Attributes:
        why: what decided it, for a person.
        fused: inside the gateway's replica; replicas, share and threads are the gateway's then.
        share_milli: thousandths of one device (of one core on the cpu tier) that a replica holds.
        threads: cores that a replica computes on.
        shadows: replicas beyond those that stand by, of the gateway only; each holds the same share.
    """

    name: str
    tier: Tier
    why: str
    fused: bool
    replicas: int
    share_milli: int
    threads: int
    shadows: int = 0

    @property
    def copies(self) -> int:
        """Processes that Serve runs for it."""
        return self.replicas + self.shadows


@dataclass(frozen=True)
class Plan:
    """The gateway and every stage, in the funnel's order."""

    gateway: Placement
    stages: tuple[Placement, ...]

    @property
    def deployments(self) -> tuple[Placement, ...]:
        """What Serve runs: the gateway, then the stages that are not fused."""
        return (self.gateway, *(stage for stage in self.stages if not stage.fused))

    @property
    def tiers(self) -> dict[str, Tier]:
        """The tier of each stage, by its name."""
        return {stage.name: stage.tier for stage in self.stages}

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def require_room(self, resources: Mapping[str, float]) -> None:
        """Raise ConfigError when not every replica can be placed; only a cluster that does not grow is asked this.

        Args:
            resources: what the cluster has in all, by Ray's names.
        """
        for tier, name in RAY_RESOURCE.items():
            here = [each for each in self.deployments if each.tier == tier]
            asked, there = sum(each.copies * each.share_milli for each in here), resources.get(name, 0)
            if asked > there * 1000:
                parts = ", ".join(f"{each.name} {each.copies} x {each.share_milli}" for each in here)
                raise ConfigError(
                    f"plan: the replicas on {tier} ask for {asked} thousandths of a device ({parts}), the cluster has "
                    f"{there * 1000:g}; lower replicas or share_milli of {_field(here[0].name)}"
                )


def make_plan(settings: Settings, resources: Mapping[str, float]) -> Plan:
    """Place everything.

    Args:
        resources: what the cluster has in all, by Ray's names (``{"CPU": 2.0, "GPU": 1.0}``).
    Raises:
        ConfigError: something fits nowhere, cannot be fused, or wants more threads than its slice has cores;
            names the field and the remedy.
    """
    gateway = _gateway(settings, resources)
    plans: dict[str, StagePlan] = {**settings.plan.stages}
    stages = tuple(_stage(name, plans.get(name, StagePlan()), gateway, settings, resources) for name in STAGES)
    _check_shadows(gateway, stages, settings)
    _check_scaled(stages, settings)
    return Plan(gateway, stages)


def choose_tier(name: str, plan: DeploymentPlan, resources: Mapping[str, float]) -> tuple[Tier, str]:
    """The first tier of the plan that the cluster has enough of for one replica, and why it is that one.

    Raises:
        ConfigError: no tier of the plan fits; names the stage, what it wants and what there is.
    """
    share = plan.share_milli / 1000
    for place, tier in enumerate(plan.tier):
        if resources.get(RAY_RESOURCE[tier], 0) >= share:
            passed = ", ".join(f"{each} (there is {_there(each, resources):g})" for each in plan.tier[:place])
            return tier, f"{tier} for want of {passed}" if passed else f"{tier} is the first choice"
    there = {tier: resources.get(resource, 0) for tier, resource in RAY_RESOURCE.items()}
    raise ConfigError(
        f"{_field(name)}.tier: {name} wants {share:g} of one of {list(plan.tier)}, the cluster has {there}; "
        f"add 'cpu' to its tier list as a fallback, or lower share_milli"
    )


def replica_options(placement: Placement) -> dict[str, Any]:
    """Serve's options for a deployment: how many replicas, what each asks of Ray, and the threads it may start.

    The variables are set before the process starts, as the numerical libraries read them when they load.
    """
    variables = dict.fromkeys(THREAD_VARIABLES, str(placement.threads))
    return {
        "num_replicas": placement.copies,
        "ray_actor_options": {
            **actor_options(placement.tier, placement.share_milli),
            "runtime_env": {"env_vars": variables},
        },
    }


def actor_options(tier: Tier, share_milli: int) -> dict[str, Any]:
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


def replica_settings(settings: Settings, placement: Placement) -> Settings:
    """The settings as a replica of this placement gets them: with the threads of its slice, and where some stand
    by, with the number of those that are to serve."""
    ranking = settings.ranking.model_copy(update={"threads": placement.threads})
    if not placement.shadows:
        return settings.model_copy(update={"ranking": ranking})
    gateway = settings.plan.gateway.model_copy(update={"replicas": placement.replicas})
    plan = settings.plan.model_copy(update={"gateway": gateway})
    return settings.model_copy(update={"ranking": ranking, "plan": plan})


def _gateway(settings: Settings, resources: Mapping[str, float]) -> Placement:
    plan = settings.plan.gateway
    tier, why = choose_tier(GATEWAY, plan, resources)
    threads = _threads(GATEWAY, tier, plan, settings)
    replicas = plan.replicas
    if replicas is None:
        cores = resources.get(RAY_RESOURCE["cpu"], 0)
        room = int(resources.get(RAY_RESOURCE[tier], 0) * 1000) // plan.share_milli
        replicas = max(1, min(room - plan.shadows, MOST_GATEWAYS, max(SPARE_REPLICAS, int(cores) // threads)))
        why = f"{why}; replicas for {cores:g} cores"
    replicas = _within(GATEWAY, replicas, settings)
    return Placement(GATEWAY, tier, why, False, replicas, plan.share_milli, threads, plan.shadows)


def _check_shadows(gateway: Placement, stages: Sequence[Placement], settings: Settings) -> None:
    """Raise ConfigError when nobody would tell shadows from those that serve."""
    if not gateway.shadows:
        return
    apart = [stage.name for stage in stages if not stage.fused]
    if apart:
        raise ConfigError(
            f"{_field(GATEWAY)}.shadows: a gateway stands by only with its stages in it, and {', '.join(apart)} "
            "run behind handles; fuse them, or set shadows to 0"
        )
    if not settings.pool.runtime.enabled:
        raise ConfigError(
            f"{_field(GATEWAY)}.shadows: the pool says who stands by, and it is off; set pool.runtime.enabled to true, "
            "or shadows to 0"
        )


def _check_scaled(stages: Sequence[Placement], settings: Settings) -> None:
    """Raise ConfigError when the replicas of a stage are to follow demand and it has none of its own."""
    for stage in stages:
        if stage.fused and stage.name in settings.autoscale.deployments:
            raise ConfigError(
                f"autoscale.deployments.{stage.name}: {stage.name} runs inside the gateway; drive the gateway, or set "
                f"{_field(stage.name)}.fused to false"
            )


def _stage(
    name: str, plan: StagePlan, gateway: Placement, settings: Settings, resources: Mapping[str, float]
) -> Placement:
    if plan.fused is True:
        return _fused(name, plan, gateway, "the profile says so")
    tier, why = choose_tier(name, plan, resources)
    if plan.fused is None and tier == gateway.tier:
        return _fused(name, plan, gateway, f"{why}, like the gateway")
    because = "the profile says so" if plan.fused is False else f"the gateway is on {gateway.tier}"
    threads = _threads(name, tier, plan, settings)
    replicas = _within(name, plan.replicas or SPARE_REPLICAS, settings)
    return Placement(name, tier, f"{why}; {because}", False, replicas, plan.share_milli, threads)


def _within(name: str, replicas: int, settings: Settings) -> int:
    """To begin with; where replicas follow demand, within the bounds of that."""
    bounds = next((each for key, each in settings.autoscale.deployments.items() if key == name), None)
    return replicas if bounds is None else min(bounds.max_replicas, max(bounds.min_replicas, replicas))


def _fused(name: str, plan: StagePlan, gateway: Placement, why: str) -> Placement:
    """In the gateway, on the gateway's tier. A profile that forbids the stage that tier contradicts itself."""
    if gateway.tier not in plan.tier:
        raise ConfigError(
            f"{_field(name)}.fused: true puts {name} into the gateway's replica, which is on {gateway.tier}; "
            f"its tier list is {list(plan.tier)}: add {gateway.tier!r} to it, or leave fused out"
        )
    return Placement(name, gateway.tier, why, True, gateway.replicas, gateway.share_milli, gateway.threads)


def _threads(name: str, tier: Tier, plan: DeploymentPlan, settings: Settings) -> int:
    """Threads a replica computes with: those stated, else the cores of its slice; a part of a core runs one."""
    cores = max(1, plan.share_milli // 1000) if tier == "cpu" else 1
    stated = settings.ranking.threads
    if stated is not None and stated > cores and tier == "cpu":
        raise ConfigError(
            f"ranking.threads: {stated} threads, and a replica of {name} has a slice of {plan.share_milli / 1000:g} "
            f"cores; set {_field(name)}.share_milli to {stated * 1000}, or leave ranking.threads out"
        )
    return cores if stated is None else stated


def _there(tier: Tier, resources: Mapping[str, float]) -> float:
    return resources.get(RAY_RESOURCE[tier], 0)


def _field(name: str) -> str:
    return f"plan.{name}" if name == GATEWAY else f"plan.stages.{name}"
