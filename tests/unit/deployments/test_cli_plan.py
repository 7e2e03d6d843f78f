"""`recpool plan`: printed for people and programs, refused with the field and the remedy."""

from __future__ import annotations

import json

import pytest
import yaml

from configs.settings import build_settings
from deployments import cli_plan
from deployments.cluster import Cluster, ClusterRecord
from deployments.plan import make_plan

GPU_MACHINE = {"CPU": 16.0, "GPU": 1.0, "NPU": 0.0}


@pytest.fixture
def plan(run, tmp_path, monkeypatch):
    """Run `recpool plan` with a profile, as if this machine had these resources."""

    def call(profile: dict, *words: str, resources=GPU_MACHINE) -> tuple[int, str, str]:
        file = tmp_path / "profile.yaml"
        file.write_text(yaml.safe_dump(profile))
        monkeypatch.setattr(cli_plan, "machine_resources", lambda: resources)
        return run("plan", "--profile", str(file), *words)

    return call


def test_every_part_is_shown_with_where_it_runs_and_why(plan):
    code, out, _ = plan({"plan": {"stages": {"fine": {"tier": ["npu", "gpu"], "share_milli": 300}}}})
    assert code == 0
    heading, _, *rows = out.splitlines()
    assert heading == "this machine has 16 cpu, 1 gpu, 0 npu"
    gateway, recall, coarse, fine = (row.split() for row in rows)
    assert gateway[:6] == ["gateway", "cpu", "ingress", "8", "100/1000", "1"]
    assert recall[:6] == ["recall", "cpu", "fused", "-", "-", "-"]
    assert coarse[:3] == ["coarse", "cpu", "fused"]
    assert fine[:6] == ["fine", "gpu", "handle", "2", "300/1000", "1"]
    assert "npu (there is 0)" in " ".join(fine)


def test_shadows_are_shown_beside_what_serves_and_count_against_the_machine(plan):
    profile = {"plan": {"gateway": {"shadows": 1}}, "pool": {"runtime": {"enabled": True}}}
    code, out, _ = plan(profile)
    gateway = next(row for row in out.splitlines() if row.startswith("gateway"))
    assert code == 0 and "8 + 1 shadow " in gateway
    code, _, err = plan({**profile, "plan": {"gateway": {"shadows": 2, "replicas": 15, "share_milli": 1000}}})
    assert code == 2 and "17 x 1000" in err


def test_as_json_it_is_the_plan_that_is_served(plan):
    profile = {"plan": {"stages": {"fine": {"tier": ["gpu", "cpu"]}}}}
    said = json.loads(plan(profile, "--json")[1])
    assert said.pop("resources") == GPU_MACHINE
    assert said.pop("of") == "this machine"
    assert said == json.loads(json.dumps(make_plan(build_settings(profile), GPU_MACHINE).as_dict()))


@pytest.mark.parametrize(
    ("branch", "said"),
    [
        ({"stages": {"fin": {}}}, ["plan.stages.fin", "'recall', 'coarse' or 'fine'"]),
        ({"stages": {"fine": {"tier": ["tpu"]}}}, ["plan.stages.fine.tier", "'cpu', 'gpu' or 'npu'", "'tpu'"]),
        ({"gateway": {"tier": "tpu"}}, ["plan.gateway.tier", "'cpu', 'gpu' or 'npu'", "'tpu'"]),
        ({"stages": {"fine": {"device": "gpu-0"}}}, ["plan.stages.fine.device", "fused", "share_milli", "tier"]),
        ({"gateway": {"fused": False}}, ["plan.gateway.fused", "no such setting"]),
        ({"gateway": {"tier": ["gpu"], "share_milli": 1500}}, ["plan.gateway.share_milli", "1000"]),
        ({"stages": {"fine": {"tier": ["npu"]}}}, ["plan.stages.fine.tier", "the cluster has", "add 'cpu'"]),
        ({"gateway": {"shadows": 1}}, ["plan.gateway.shadows", "pool.runtime.enabled"]),
        ({"gateway": {"shadows": 1}, "stages": {"fine": {"fused": False}}}, ["plan.gateway.shadows", "fine"]),
        ({"gateway": {"replicas": 20, "share_milli": 1000}}, ["plan.gateway", "20 x 1000", "16000", "lower replicas"]),
    ],
)
def test_a_plan_that_cannot_be_is_refused_with_the_field_and_what_is_known(plan, branch, said):
    code, out, err = plan({"plan": branch})
    assert (code, out) == (2, "")
    assert not [each for each in said if each not in err], err
    assert err.count("plan.") <= 2  # not a second complaint that only follows from the first


def test_a_running_cluster_is_what_the_plan_is_for(plan, monkeypatch):
    record = ClusterRecord(1, 0.0, "b", "a", "d", "h", "s", {"CPU": 3.0, "GPU": 0.0})
    monkeypatch.setattr(Cluster, "record", lambda self: record)
    monkeypatch.setattr(Cluster, "is_alive", lambda self: True)
    assert plan({})[1].startswith("the running cluster has 3 cpu, 0 gpu, 0 npu\n")


def test_nothing_is_started_or_written(plan, tmp_path):
    plan({})
    assert [file.name for file in tmp_path.iterdir()] == ["profile.yaml"]
