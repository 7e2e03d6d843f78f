"""``recpool plan``: where everything would run, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from configs.settings import Settings
from deployments.cluster import Cluster
from deployments.console import aligned, show
from deployments.machine import machine_resources
from deployments.options import AsJson, DatasetName, Profile, resolve
from deployments.plan import GATEWAY, RAY_RESOURCE, Placement, Plan, make_plan

HEADINGS = ("stage", "tier", "runs", "replicas", "share", "threads", "why")


def plan(profile: Profile = "default", dataset: DatasetName = None, as_json: AsJson = False) -> None:
    """Show where each stage would run, and why; starts nothing."""
    settings, _ = resolve(profile, dataset)
    source, resources = _resources(settings)
    made = make_plan(settings, resources)
    made.require_room(resources)
    show({"resources": resources, "of": source, **made.as_dict()}, _lines(made, source, resources), as_json)


def _resources(settings: Settings) -> tuple[str, Mapping[str, float]]:
    """Of the cluster that runs in this home, else of the machine that `up` would start one on."""
    cluster = Cluster(settings.home)
    record = cluster.record()
    if record is not None and record.resources and cluster.is_alive():
        return "the running cluster", record.resources
    return "this machine", machine_resources()


def _lines(made: Plan, source: str, resources: Mapping[str, float]) -> Iterator[str]:
    there = ", ".join(f"{resources.get(resource, 0):g} {tier}" for tier, resource in RAY_RESOURCE.items())
    yield f"{source} has {there}"
    yield from aligned([HEADINGS, *(_row(each) for each in (made.gateway, *made.stages))])


def _row(each: Placement) -> tuple[str, ...]:
    """What a fused stage holds is the gateway's, and is shown there alone."""
    if each.fused:
        return each.name, each.tier, "fused", "-", "-", "-", each.why
    runs = "ingress" if each.name == GATEWAY else "handle"
    standing = f" + {each.shadows} shadow{'' if each.shadows == 1 else 's'}" if each.shadows else ""
    replicas = f"{each.replicas}{standing}"
    return each.name, each.tier, runs, replicas, f"{each.share_milli}/1000", str(each.threads), each.why
