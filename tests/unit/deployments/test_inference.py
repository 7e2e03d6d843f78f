"""What Serve, HAProxy and the pool are told of models as a service."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private.haproxy import BackendConfig, ServerConfig

from configs.settings import build_settings
from deployments.haproxy_config import INFERENCE, rewritten
from deployments.inference_config import APPLICATION, IMPORT_PATH, PREFIX, InferenceArguments, inference_applications
from deployments.inference_slices import ModelSlices, model_settings, workload_name
from pool.workload import WORKLOAD_NAME
from tests.unit.deployments.test_haproxy import RULES, complaints, generate


def section(config: str, name: str) -> str:
    return re.split(r"^(?=\S)", config.partition(f"backend {name}\n")[2], maxsplit=1, flags=re.M)[0]


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> str:
    """HAProxy's configuration with the recommender and the models, a replica each."""
    folder = tmp_path_factory.mktemp("haproxy")
    replica = ServerConfig(name="m0", host="127.0.0.1", port=30_100)
    models = BackendConfig(f"http-{APPLICATION}", PREFIX, servers=[replica], app_name=APPLICATION)
    config = rewritten(generate(folder, ("r0",), models), RULES)
    assert complaints(folder, config) == ""
    return config


def test_calls_of_models_wait_in_the_queue_of_the_model_and_not_in_haproxy_s(written):
    models, recommender = section(written, INFERENCE), section(written, "http-recpool")
    assert "status 429" in recommender and "status 429" not in models
    assert re.findall(r"server .* maxconn (\d+)", recommender) == ["7"]
    assert int(re.findall(r"server .* maxconn (\d+)", models)[0]) >= 1_000


def test_a_model_may_take_longer_than_a_recommendation(written):
    waits = [int(ms) for ms in re.findall(r"set-timeout server (\d+)ms if is_call", section(written, INFERENCE))]
    assert waits and waits[0] > RULES.answer_ms


def test_the_application_is_deployed_where_it_is_wanted():
    arguments = {"profile": "default", "overrides": {"dataset": "mine"}}
    assert inference_applications(build_settings({}), arguments) == []
    (app,) = inference_applications(build_settings({"inference": {"enabled": True}}), arguments)
    assert (app["name"], app["route_prefix"], app["import_path"]) == (APPLICATION, PREFIX, IMPORT_PATH)
    assert InferenceArguments.model_validate(app["args"]).overrides == {"dataset": "mine"}
    assert f"http-{APPLICATION}" == INFERENCE


def model(name: str, **spec: Any) -> Any:
    return SimpleNamespace(
        name=name, version="1", spec=SimpleNamespace(**{"share_milli": None, "slo_ms": None, **spec})
    )


def test_a_model_claims_its_own_share_and_slo():
    settings = build_settings({"inference": {"model_share_milli": 70}, "pool": {"runtime": {"serving_slo_ms": 100}}})
    plain = model_settings(settings, model("a"))
    assert (plain.plan.gateway.share_milli, plain.pool.runtime.serving_slo_ms) == (70, None)
    own = model_settings(settings, model("a", share_milli=300, slo_ms=20))
    assert (own.plan.gateway.share_milli, own.pool.runtime.serving_slo_ms) == (300, 20)


@pytest.mark.parametrize("name", ["resnet", "My_Model", "a+b", "X" * 128])
def test_any_model_has_a_name_that_the_pool_takes(name):
    assert re.fullmatch(WORKLOAD_NAME, workload_name(name))


def test_without_a_pool_no_slice_is_claimed():
    slices = ModelSlices(build_settings({}))
    slices.follow({"a/1": model("a")})
    slices.stop()
