"""The autoscaler without Ray: what it tells Serve, whom it warns, and what it keeps."""

from __future__ import annotations

import pytest

from configs.errors import ConfigError
from configs.settings import Settings, build_settings
from deployments.autoscaling import Replicas, Scaling
from deployments.ingress_counts import IngressCounts, counts_in
from deployments.load_reports import CallLoad, LoadReporter, ServiceLoad
from deployments.plan import make_plan
from deployments.rollout import serve_config
from deployments.scaled_counts import with_counts
from pool.policy.autoscale.loads import Load, Outside

GATEWAY = {"max_replicas": 6, "start_s": 20, "curve": [{"rate_per_s": 50, "p99_ms": 80}]}


def settings_of(home, **deployments) -> Settings:
    return build_settings({"home": str(home), "autoscale": {"deployments": deployments or {"gateway": GATEWAY}}})


class Serve:
    """Replicas that are there as soon as they are asked for."""

    def __init__(self, running: int = 1):
        self.running = running
        self.asked: list[tuple[str, str, int]] = []

    def replicas(self, app: str, deployment: str) -> Replicas:
        return Replicas(self.running, 0)

    def set(self, app: str, deployment: str, replicas: int) -> None:
        self.asked.append((app, deployment, replicas))
        self.running = replicas


class World:
    def __init__(self, home, outside=lambda: None):
        self.now_s, self.arrived, self.serve = 1_000.0, 0.0, Serve()
        self.warned: list[str] = []
        self.settings = settings_of(home)
        clock = lambda: self.now_s  # noqa: E731 - a clock
        self.scaling = Scaling(self.settings, self.serve, self.warned.append, outside, clock, clock)

    def run(self, rate: float, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1
            self.arrived += rate
            self.scaling.report(Load("shop", "gateway", "a", self.arrived, 0, 0, 0))
            self.scaling.tick()


def test_more_demand_is_more_replicas_the_pool_is_warned_and_the_view_says_why(tmp_path):
    world = World(tmp_path)
    world.run(20.0, 30)
    assert world.serve.asked == []
    world.run(170.0, 30)
    assert world.serve.running >= 4
    assert {(app, name) for app, name, _ in world.serve.asked} == {("shop", "gateway")}
    assert any(reason.startswith("gateway goes from 1 to") for reason in world.warned)
    [report] = world.scaling.reports()
    assert (report.deployment, report.replicas, report.arriving_per_s) == ("gateway", world.serve.running, 170)
    assert report.reasons
    warned = len(world.warned)
    world.run(0.0, 200)
    assert world.serve.running == 1
    assert len(world.warned) == warned, "fewer replicas are no reason to save anything"


def test_counts_that_somebody_else_has_set_are_put_right(tmp_path):
    world = World(tmp_path)
    world.run(170.0, 30)
    wanted, world.serve.running = world.serve.running, 1
    world.run(170.0, 1)
    assert world.serve.running == wanted


def test_before_any_replica_was_heard_of_nothing_is_changed(tmp_path):
    world = World(tmp_path)
    world.scaling.tick()
    assert world.serve.asked == [] and world.scaling.reports() == ()


def test_calls_that_only_the_ingress_sees_count(tmp_path):
    calls = iter(range(0, 100_000, 300))
    world = World(tmp_path, lambda: Outside(next(calls), 0))
    world.run(10.0, 20)
    assert world.serve.running == 6


def test_what_was_learnt_outlives_the_process(tmp_path):
    world = World(tmp_path)
    world.run(40.0, 61)
    after = Scaling(world.settings, Serve())
    assert after._scalers["gateway"].demand.forecaster.seen >= 5


@pytest.mark.parametrize("text", ["", "{", '{"format": 9}', "[]"])
def test_a_damaged_file_is_as_none(tmp_path, text):
    folder = tmp_path / "run" / "autoscale"
    folder.mkdir(parents=True)
    (folder / "gateway.json").write_text(text)
    assert Scaling(settings_of(tmp_path), Serve())._scalers["gateway"].demand.forecaster.seen == 0


def test_the_gateways_backends_are_read_from_haproxys_statistics():
    table = (
        "# pxname,svname,qcur,qmax,scur,smax,slim,stot,\n"
        "http-recpool,BACKEND,3,9,16,20,100,1200,\n"
        "http-other,BACKEND,1,9,16,20,100,34,\n"
        "stats,BACKEND,5,5,5,5,5,5,\n\n"
    )
    assert counts_in(table) == Outside(arrived=1234, queued=4)


def test_an_ingress_that_is_not_there_counts_nothing(tmp_path):
    assert IngressCounts(tmp_path / "nothing")() is None


class Service:
    queue = 4

    def __init__(self):
        self.counts = {"requests": 10, "errors": 1, "refused": 2}
        self.took_ms = [5.0, 150.0, 99.0]

    def latencies_ms(self, over_s: float) -> list[float]:
        return self.took_ms

    def status(self) -> dict:
        return self.counts


def test_a_gateway_counts_refused_requests_as_arrived_and_as_late():
    service = Service()
    counted = ServiceLoad(service, late_ms=100)
    assert counted.counts() == (13, 1 + 2, 4)
    service.took_ms = [101.0, 102.0]
    assert counted.counts() == (13, 3 + 2, 4)


def test_a_stage_counts_rows_those_under_way_and_those_that_failed():
    counted = CallLoad(late_ms=10_000)
    with counted.call(8), counted.call(3):
        assert counted.counts() == (11, 0, 3)
    with pytest.raises(ZeroDivisionError), counted.call(5):
        raise ZeroDivisionError
    assert counted.counts() == (16, 5, 0)


def test_a_deployment_that_is_not_driven_reports_nothing(tmp_path):
    told: list[Load] = []
    LoadReporter(settings_of(tmp_path).autoscale, "recall", CallLoad(10), tell=told.append).start()
    assert told == []


def test_the_document_names_the_external_scaler_only_where_counts_are_driven(tmp_path):
    driven, fixed = settings_of(tmp_path), build_settings({"home": str(tmp_path)})
    documents = [serve_config("default", each, make_plan(each, {"CPU": 4.0})) for each in (driven, fixed)]
    assert documents[0]["applications"][0]["external_scaler_enabled"] is True
    assert "external_scaler_enabled" not in documents[1]["applications"][0]


def test_a_new_document_keeps_the_counts_that_demand_has_set():
    def document(**more) -> dict:
        return {"applications": [{"name": "a", "deployments": [{"name": "gateway", "user_config": {}}], **more}]}

    running = {"a": {"deployments": {"gateway": {"target_num_replicas": 5}}}}
    kept = with_counts(document(external_scaler_enabled=True), running)
    assert kept["applications"][0]["deployments"] == [{"name": "gateway", "user_config": {}, "num_replicas": 5}]
    assert with_counts(document(), running) == document()
    assert with_counts(document(external_scaler_enabled=True), {}) == document(external_scaler_enabled=True)


@pytest.mark.parametrize(("stated", "replicas"), [(1, 2), (3, 3), (50, 6)])
def test_the_plan_begins_within_the_bounds(tmp_path, stated, replicas):
    tree = {"home": str(tmp_path), "plan": {"gateway": {"replicas": stated}}}
    tree["autoscale"] = {"deployments": {"gateway": {**GATEWAY, "min_replicas": 2}}}
    assert make_plan(build_settings(tree), {"CPU": 64.0}).gateway.replicas == replicas


def test_a_stage_inside_the_gateway_cannot_be_driven(tmp_path):
    with pytest.raises(ConfigError, match=r"autoscale.deployments.recall: .*drive the gateway"):
        make_plan(settings_of(tmp_path, recall=GATEWAY), {"CPU": 4.0})
