"""What runs is measured into profiles, and what is known of costs reaches placement and reports."""

from __future__ import annotations

from dataclasses import replace

import pytest

from configs.pool_settings import PoolSettings
from pool.device import Device, Topology
from pool.lease import Lease
from pool.policy.latency import BatchTime, GraphCosts, LatencyProfile
from pool.profiles import ProfileKey, ProfileStore
from pool.release_costs import FUNNEL
from pool.runtime.knowledge import LOOK_S, WRITE_S, Knowledge
from pool.runtime.messages import Claim, HostStatus
from pool.work import Progress
from pool.workload import WorkloadSpec

GPU = Device("gpu-0", "gpu", 1 << 30, Topology("n1"), cores=(0,), emulated=True)
KEY = ProfileKey(FUNNEL, "gpu", "7")
BATCHES = (BatchTime(1, 2.0, 3.0, 40), BatchTime(8, 6.0, 9.0, 100))
CLAIM = Claim("replica-1", "gateway", "n1", "cpu", 250, slo_ms=50.0, version="7", batches=BATCHES)
COSTS = GraphCosts(flops=24_000_000, parameters=1_000, weight_bytes=0, activation_bytes=0, has_attention=False)
WARM = WorkloadSpec(name="warm", kind="warmup", model="any", version="7", slo_ms=20.0, tier=("gpu",))


class FakeReleases:
    """Graphs that are counted once a test says so."""

    champion = "7"
    counted: GraphCosts | None = None

    def version(self, version):
        return version or self.champion

    def costs(self, model, version):
        return self.counted


@pytest.fixture
def releases():
    return FakeReleases()


@pytest.fixture
def store(tmp_path):
    return ProfileStore(tmp_path / "profiles")


@pytest.fixture
def knowledge(store, releases, clock):
    return Knowledge(PoolSettings(), store, releases, clock.monotonic)  # type: ignore[arg-type]


def ended(lease: str, batches, version: str = "7") -> HostStatus:
    held = Lease(lease, "warm", "gpu-0", 100, 0, 1)
    result = {"version": version, "batches": batches}
    return HostStatus(held, WARM, 1, 1, "ended", "succeeded", progress=Progress(1, 1), result=result)


def row(rows: int, p50_ms: float, p99_ms: float) -> dict[str, float]:
    return {"batch_rows": rows, "p50_ms": p50_ms, "p99_ms": p99_ms, "runs": 4}


def test_what_a_serving_replica_measures_is_kept_by_release_and_kind_of_device(knowledge, store):
    knowledge.hear_claim(CLAIM, GPU)
    assert store.get(KEY) == LatencyProfile(batch_rows=(1, 8), p50_ms=(2.0, 6.0), p99_ms=(3.0, 9.0), emulated=True)


@pytest.mark.parametrize("changed", [{"batches": ()}, {"version": None}, {"version": "../../etc"}])
def test_a_claim_that_measures_nothing_of_a_release_writes_nothing(knowledge, store, changed):
    knowledge.hear_claim(replace(CLAIM, **changed), GPU)
    assert store.keys() == []


def test_a_profile_is_written_now_and_then_and_keeps_what_was_not_measured_again(knowledge, store, clock):
    knowledge.hear_claim(CLAIM, GPU)
    later = replace(CLAIM, batches=(BatchTime(7, 5.0, 5.5, 30),))
    knowledge.hear_claim(later, GPU)
    assert store.get(KEY).batch_rows == (1, 8)
    clock.now_s += WRITE_S
    knowledge.hear_claim(later, GPU)
    assert store.get(KEY) == LatencyProfile(batch_rows=(1, 7), p50_ms=(2.0, 5.0), p99_ms=(3.0, 5.5), emulated=True)


def test_a_warm_up_is_heard_once_and_tells_of_the_release_it_warmed(knowledge, store):
    status = ended("1-1", [row(4, 3.0, 4.0)])
    knowledge.hear_results([status], {"gpu-0": GPU})
    assert store.get(KEY) == LatencyProfile(batch_rows=(4,), p50_ms=(3.0,), p99_ms=(4.0,), emulated=True)
    other = replace(status, result={"version": "7", "batches": [row(4, 9.0, 9.0)]})
    knowledge.hear_results([other], {"gpu-0": GPU})
    assert store.get(KEY).p99_ms == (4.0,)


@pytest.mark.parametrize("batches", [None, [{"rows": 1}], [row(0, 1.0, 2.0)], [row(1, 3.0, 2.0)], [row(1, 1.0, 1e999)]])
def test_a_result_of_another_form_teaches_nothing(knowledge, store, batches):
    knowledge.hear_results([ended("1-1", batches)], {"gpu-0": GPU})
    assert store.keys() == []


def test_a_damaged_profile_is_unknown_until_it_is_measured_again(knowledge, store):
    store.folder.mkdir(parents=True)
    (store.folder / KEY.file_name).write_text("{")
    assert knowledge.of(WARM).predictions == {}
    knowledge.hear_claim(CLAIM, GPU)
    assert knowledge.of(WARM).predictions["gpu"].source == "profile"


def test_what_is_measured_goes_before_the_graph_and_both_are_told(knowledge, releases):
    releases.counted = COSTS
    # 24 million operations at 30% of 19,500 thousand million a second, half a millisecond for the call; the tail 1.5
    by_graph_ms = (24e6 / (0.3 * 19_500e9) * 1e3 + 0.5) * 1.5
    known = knowledge.of(WARM)
    assert known.predictions["gpu"].source == "roofline"
    assert known.predictions["gpu"].latency_ms == pytest.approx(by_graph_ms)
    knowledge.hear_claim(CLAIM, GPU)
    known = knowledge.of(WARM)
    assert (known.predictions["gpu"].source, known.predictions["gpu"].latency_ms) == ("profile", 3.0)
    assert known.by_graph["gpu"].latency_ms == pytest.approx(by_graph_ms)
    # 3 ms of the 16 that it may take of its SLO of 20 need 188 thousandths
    assert known.predictions["gpu"].share_milli == 188


def test_a_graph_that_is_counted_meanwhile_is_known_soon(knowledge, releases, clock):
    assert knowledge.of(WARM).predictions == {}
    releases.counted = COSTS
    assert knowledge.of(WARM).predictions == {}
    clock.now_s += LOOK_S
    assert knowledge.of(WARM).costs == COSTS


def test_a_kind_that_cores_stand_in_for_is_predicted_as_cores(store, releases, clock, settings):
    releases.counted = COSTS
    known = Knowledge(settings, store, releases, clock.monotonic).of(  # type: ignore[arg-type]
        WARM.model_copy(update={"tier": ("cpu", "gpu", "npu")})
    )
    latency_ms = {kind: each.latency_ms for kind, each in known.predictions.items()}
    # 24 million operations at 30% of 80 thousand million a second, a tenth of a millisecond for the call
    assert latency_ms["gpu"] == latency_ms["cpu"] == pytest.approx((24e6 / (0.3 * 80e9) * 1e3 + 0.1) * 1.5)
    assert latency_ms["npu"] < latency_ms["gpu"]


def test_of_training_the_graph_is_known_and_no_latency(knowledge, releases):
    releases.counted = COSTS
    known = knowledge.of(WORKLOAD := WorkloadSpec(name="night", kind="finetune", model="fine"))
    assert (known.predictions, known.costs) == ({}, COSTS)
    assert knowledge.of(WORKLOAD) is known


def test_a_workload_that_changes_is_looked_at_again(knowledge, releases):
    releases.counted = COSTS
    assert set(knowledge.of(WARM).predictions) == {"gpu"}
    assert set(knowledge.of(WARM.model_copy(update={"tier": ("cpu", "npu")})).predictions) == {"cpu", "npu"}


def test_predictions_reach_placement_and_the_report_beside_what_is_measured(make, store, releases, clock):
    releases.counted = COSTS
    run = make(knowledge=Knowledge(PoolSettings(), store, releases, clock.monotonic))  # type: ignore[arg-type]
    run.controller.claim(CLAIM)
    run.submit("warm", kind="warmup", model="any", version="7", slo_ms=20.0)
    run.tick()
    report = run.controller.workload("warm")
    assert report.placement.startswith("predicted share in milli, cheapest first: gpu 300 by profile; leaves")
    [cost] = report.costs
    assert (cost.kind, cost.measured_ms, cost.emulated, cost.source) == ("gpu", 3.0, True, "profile")
    assert cost.predicted_ms == pytest.approx((24e6 / (0.3 * 19_500e9) * 1e3 + 0.5) * 1.5)
    [_, served] = run.controller.workloads()
    assert {each.kind for each in served.costs} == {"cpu", "gpu", "npu"}
    assert {each.batch_rows for each in served.costs} == {8}, "the batches that were seen most often"
    assert served.placement


def test_a_fine_tune_is_placed_by_the_rule_of_thumb(make, releases, store, clock):
    releases.counted = replace(COSTS, parameters=6_000_000, has_attention=True)
    run = make(knowledge=Knowledge(PoolSettings(), store, releases, clock.monotonic))  # type: ignore[arg-type]
    run.submit("night", attributes={"batch_rows": 512})
    run.tick()
    assert run.controller.workload("night").placement.startswith("rule of thumb: a transformer and 512 rows a batch")


def test_why_it_was_placed_there_outlives_the_controller(make):
    first = make()
    first.started("night")
    placed = first.controller.workload("night").placement
    assert placed.startswith("its tiers in their order")
    assert make().controller.workload("night").placement == placed
