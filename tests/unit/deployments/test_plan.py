"""Where stages run: the wanted tier when the cluster has it, else the next one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import ConfigError
from configs.settings import StagePlan, build_settings, load_settings
from deployments.plan import actor_options, choose_tier, replica_options, split_stages

CPU_ONLY = {"CPU": 2.0}
WITH_GPU = {"CPU": 2.0, "GPU": 1.0}


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
    assert choose_tier("fine", StagePlan(tier=wanted, share_milli=100), resources) == chosen


def test_a_stage_that_fits_nowhere_is_refused_by_name_with_what_there_is():
    with pytest.raises(ConfigError, match=r"fine wants 0\.5 of one of \['gpu', 'npu'\].*'gpu': 0.*fallback"):
        choose_tier("fine", StagePlan(tier=("gpu", "npu"), share_milli=500), CPU_ONLY)


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
    plan = StagePlan(tier=("gpu", "cpu"), replicas=3, share_milli=200)
    assert replica_options("fine", plan, CPU_ONLY) == {
        "num_replicas": 3,
        "ray_actor_options": {"num_cpus": 0.2},
    }


def test_stages_are_fused_unless_the_plan_splits_them():
    assert list(split_stages(load_settings("default"))) == []
    assert list(split_stages(load_settings("split"))) == ["recall", "coarse", "fine"]
    assert list(split_stages(build_settings({"plan": {"stages": {"fine": {"fused": False}}}}))) == ["fine"]
