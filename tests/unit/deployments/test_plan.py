"""The plan: the wanted tier when the cluster has it, else the next one; together what shares a device, apart what
does not; and no more threads than cores."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import ConfigError
from configs.plan_settings import STAGES, StagePlan
from configs.settings import build_settings, load_settings
from deployments.plan import (
    THREAD_VARIABLES,
    Plan,
    actor_options,
    choose_tier,
    make_plan,
    replica_options,
    replica_settings,
)

CPU_ONLY = {"CPU": 2.0}
WITH_GPU = {"CPU": 2.0, "GPU": 1.0}


def plan(resources=CPU_ONLY, gateway=None, threads=None, **stages) -> Plan:
    """The plan of a profile with these branches."""
    tree = {"plan": {"gateway": gateway or {}, "stages": stages}, "ranking": {"threads": threads}}
    return make_plan(build_settings(tree), resources)


def places(made: Plan) -> dict[str, tuple[str, bool]]:
    return {stage.name: (stage.tier, stage.fused) for stage in made.stages}


@pytest.mark.parametrize(
    ("wanted", "resources", "chosen"),
    [
        (("cpu",), CPU_ONLY, "cpu"),
        (("gpu", "cpu"), WITH_GPU, "gpu"),
        (("gpu", "cpu"), CPU_ONLY, "cpu"),
        (("npu", "gpu", "cpu"), WITH_GPU, "gpu"),
        (("npu", "gpu", "cpu"), {"NPU": 0.5, "CPU": 1}, "npu"),
        (("gpu", "cpu"), {"CPU": 2.0, "GPU": 0.05}, "cpu"),
    ],
)
def test_the_first_tier_that_the_cluster_has_enough_of_is_chosen(wanted, resources, chosen):
    tier, why = choose_tier("fine", StagePlan(tier=wanted, share_milli=100), resources)
    assert tier == chosen
    assert all(passed in why for passed in wanted[: wanted.index(chosen)])


def test_serve_runs_the_shadows_too_and_each_gateway_knows_how_many_are_to_serve():
    settings = build_settings({"plan": {"gateway": {"shadows": 1}}, "pool": {"runtime": {"enabled": True}}})
    made = make_plan(settings, CPU_ONLY)
    assert (made.gateway.replicas, made.gateway.shadows, made.gateway.copies) == (2, 1, 3)
    assert replica_options(made.gateway)["num_replicas"] == 3
    assert replica_settings(settings, made.gateway).plan.gateway.replicas == 2


def test_a_stage_that_fits_nowhere_is_refused_by_field_with_what_there_is():
    with pytest.raises(ConfigError, match=r"plan\.stages\.fine\.tier: .*0\.5 .*\['gpu', 'npu'\].*'gpu': 0.*fallback"):
        plan(fine={"tier": ["gpu", "npu"], "share_milli": 500})


def test_stages_on_the_gateways_tier_are_fused():
    made = plan()
    assert places(made) == dict.fromkeys(STAGES, ("cpu", True))
    assert [each.name for each in made.deployments] == ["gateway"]


def test_a_stage_on_another_device_is_a_deployment_of_its_own():
    made = plan(WITH_GPU, fine={"tier": ["gpu", "cpu"]})
    assert places(made) == {"recall": ("cpu", True), "coarse": ("cpu", True), "fine": ("gpu", False)}
    assert [each.name for each in made.deployments] == ["gateway", "fine"]


def test_the_same_profile_is_fused_where_the_other_device_is_missing():
    assert places(plan(CPU_ONLY, fine={"tier": ["gpu", "cpu"]}))["fine"] == ("cpu", True)


def test_a_gateway_on_the_device_has_its_stages_there_and_parts_from_the_others():
    made = plan(WITH_GPU, gateway={"tier": "gpu"}, fine={"tier": "gpu"}, coarse={"tier": "gpu"})
    assert places(made) == {"recall": ("cpu", False), "coarse": ("gpu", True), "fine": ("gpu", True)}


def test_a_profile_may_split_what_would_be_fused():
    assert [each.name for each in plan(coarse={"fused": False}).deployments] == ["gateway", "coarse"]
    split = make_plan(load_settings("split"), CPU_ONLY)
    assert [each.name for each in split.deployments] == ["gateway", *STAGES]


def test_a_profile_may_fuse_what_would_be_split_if_the_stage_may_run_on_the_gateways_tier():
    assert places(plan(WITH_GPU, fine={"tier": ["gpu", "cpu"], "fused": True}))["fine"] == ("cpu", True)
    with pytest.raises(ConfigError, match=r"plan\.stages\.fine\.fused: .*on cpu.*\['gpu'\].*add 'cpu'"):
        plan(WITH_GPU, fine={"tier": ["gpu"], "fused": True})


@pytest.mark.parametrize(
    ("cores", "share_milli", "replicas"),
    [
        (1, 100, 2),  # two at least, so that one may be lost
        (2, 100, 2),
        (6, 100, 6),  # one a core
        (64, 100, 8),  # memory is not for the taking
        (8, 2000, 4),  # slices of two cores
        (2, 2000, 1),  # room for one
    ],
)
def test_gateways_use_the_cores_within_bounds(cores, share_milli, replicas):
    assert plan({"CPU": float(cores)}, gateway={"share_milli": share_milli}).gateway.replicas == replicas


def test_stated_replicas_are_taken_as_they_are():
    made = plan({"CPU": 64.0}, gateway={"replicas": 1}, fine={"fused": False, "replicas": 5})
    assert [each.replicas for each in made.deployments] == [1, 5]


def test_a_stage_of_its_own_can_lose_one_replica():
    assert plan(fine={"fused": False}).deployments[1].replicas == 2


@pytest.mark.parametrize(
    ("share_milli", "threads"), [(1, 1), (100, 1), (999, 1), (1000, 1), (1999, 1), (2000, 2), (7500, 7)]
)
def test_a_replica_has_as_many_threads_as_its_slice_has_whole_cores(share_milli, threads):
    made = plan({"CPU": 64.0}, gateway={"share_milli": share_milli})
    assert made.gateway.threads == threads
    variables = replica_options(made.gateway)["ray_actor_options"]["runtime_env"]["env_vars"]
    assert variables == dict.fromkeys(THREAD_VARIABLES, str(threads))


def test_an_accelerators_host_process_has_one_thread_and_is_not_a_matter_of_its_share():
    assert plan(WITH_GPU, fine={"tier": "gpu", "share_milli": 1000}).stages[-1].threads == 1


def test_fewer_threads_than_cores_may_be_stated_and_more_are_refused_with_the_remedy():
    four = {"share_milli": 4000}
    assert plan({"CPU": 8.0}, gateway=four, threads=3).gateway.threads == 3
    with pytest.raises(ConfigError, match=r"ranking\.threads: 5 .*plan\.gateway\.share_milli to 5000"):
        plan({"CPU": 8.0}, gateway=four, threads=5)


def test_replicas_are_told_the_threads_of_their_own_slice_and_nothing_else_changes():
    settings = build_settings({"plan": {"gateway": {"share_milli": 2000}}})
    told = replica_settings(settings, make_plan(settings, {"CPU": 4.0}).gateway)
    assert told.ranking.threads == 2
    assert told.model_copy(update={"ranking": settings.ranking}) == settings


def test_each_tier_asks_ray_for_its_own_resource():
    assert actor_options("cpu", 250) == {"num_cpus": 0.25}
    assert actor_options("gpu", 300) == {"num_cpus": 0, "num_gpus": 0.3}
    assert actor_options("npu", 1000) == {"num_cpus": 0, "resources": {"NPU": 1.0}}


@given(st.integers(1, 1000), st.sampled_from(["cpu", "gpu", "npu"]))
def test_a_share_is_an_exact_multiple_of_a_thousandth(share_milli, tier):
    options = actor_options(tier, share_milli)
    share = {"cpu": options["num_cpus"], "gpu": options.get("num_gpus")}.get(tier) or options["resources"]["NPU"]
    assert round(share * 1000) == share_milli
    assert share == share_milli / 1000


def test_replicas_and_resources_come_from_the_plan():
    options = replica_options(plan(fine={"fused": False, "replicas": 3, "share_milli": 200}).stages[-1])
    assert options["num_replicas"] == 3
    assert options["ray_actor_options"]["num_cpus"] == 0.2


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 1500)), min_size=1, max_size=3),
    st.integers(0, 8),
    st.integers(0, 2),
)
def test_a_plan_has_room_exactly_when_its_shares_add_up_to_no_more_than_there_is(wanted, cores, gpus):
    """Against adding up by hand."""
    stages = {
        name: {"fused": False, "replicas": replicas, "share_milli": min(share, 1000), "tier": "gpu" if odd else "cpu"}
        for odd, (name, (replicas, share)) in enumerate(zip(STAGES, wanted, strict=False))
    }
    gateway = {"replicas": 1, "share_milli": 500}
    made = plan({"CPU": 100.0, "GPU": 100.0}, gateway=gateway, **stages)
    on = {"cpu": 0, "gpu": 0}
    for stage in stages.values():
        on[stage["tier"]] += stage["replicas"] * stage["share_milli"]
    fits = 500 + on["cpu"] <= 1000 * cores and on["gpu"] <= 1000 * gpus
    try:
        made.require_room({"CPU": float(cores), "GPU": float(gpus)})
        assert fits
    except ConfigError as error:
        assert not fits
        assert "plan." in error.message and "share_milli" in error.message


def test_a_plan_is_a_value():
    assert plan() == plan()
    with pytest.raises(FrozenInstanceError):
        plan().gateway.replicas = 3
