"""``recpool pool``: asked of a service by HTTP; lines or JSON; messages and exit codes."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace
from functools import cache
from typing import Any

import httpx
import pytest
from rich.console import Console

from configs.errors import Unavailable
from configs.settings import Settings
from deployments import cli_pool, pool_ask
from deployments.pool_client import NO_CONTROLLER, PoolClient
from deployments.pool_routes import pool_router
from serving.http import build_http
from tests.unit.deployments.pools import Current, FakeController, FakeHandle, full_report, workload

SUBMIT = """submit finetune --name nightly --model fine --version 7 --min-milli 100 --desired-milli 400
    --memory-bytes 1024 --slo-ms 50 --tier gpu --tier cpu --attribute shards=2 --attribute precision=fp16
    --option epochs=2"""


INSIDE = "127.0.0.1"


class FakeService:
    why_not_ready = None


class FakeNet:
    """In the place of the network: the one service there is answers, whatever address is asked.

    Attributes:
        headers: of the requests, in their order.
        down: nothing answers.
    """

    def __init__(self, app: Any):
        self._app = app
        self.headers: list[httpx.Headers] = []
        self.down = False

    def request(self, method: str, url: str, timeout_s: float, **more: Any) -> httpx.Response:
        if self.down:
            raise httpx.ConnectError("refused")
        return asyncio.run(self._answer(method, url, more))

    async def _answer(self, method: str, url: str, more: dict[str, Any]) -> httpx.Response:
        transport = httpx.ASGITransport(app=self._app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport) as client:
            reply = await client.request(method, url, **more)
        self.headers.append(reply.request.headers)
        return reply


@pytest.fixture
def controller():
    return FakeController()


CURRENT = Current()


@cache
def service(host: str, home: Any) -> Any:
    settings = Settings.model_validate({"home": home, "serving": {"host": host}})
    return build_http(FakeService(), settings.serving, [pool_router(settings, PoolClient(lambda: CURRENT))])  # type: ignore


@pytest.fixture
def serve(controller, tmp_path, monkeypatch):
    """Put a service that listens on a host into the place of the network."""
    CURRENT.target = FakeHandle(controller)

    def start(host: str = INSIDE) -> FakeNet:
        net = FakeNet(service(host, "var" if host == INSIDE else tmp_path))  # inside, no token of a home is asked for
        monkeypatch.setattr(pool_ask.plain_http, "request", net.request)
        return net

    return start


@pytest.fixture
def net(serve):
    return serve()


def test_submit_declares_what_is_stated_and_nothing_else(run, net, controller):
    code, out, err = run("pool", *SUBMIT.split())
    assert (code, err) == (0, "")
    assert out == "nightly  fine-tune, best effort  queued\n"
    stated = {"name", "kind", "model", "min_milli", "desired_milli", "memory_bytes", "tier", "version", "slo_ms"}
    spec = controller.specs[0]
    assert spec.model_fields_set == stated | {"attributes", "options"}
    assert (spec.tier, spec.slo_ms, spec.version) == (("gpu", "cpu"), 50, "7")
    assert spec.options == {"epochs": 2}
    assert spec.attributes.model_dump(include={"shards", "precision"}) == {"shards": 2, "precision": "fp16"}


def test_a_wrong_field_is_refused_by_name(run, net):
    code, out, err = run("pool", "submit", "finetune", "--name", "nightly", "--model", "fine", "--min-milli", "1001")
    assert (code, out) == (1, "")
    assert "min_milli" in err


def test_a_pair_without_a_name_or_a_value_is_refused_by_option_and_text(run, net):
    code, _, err = run("pool", "submit", "finetune", "--name", "n", "--model", "m", "--option", "epochs")
    assert code == 2
    assert "--option" in err and "'epochs'" in err


@pytest.mark.parametrize(
    ("words", "value"), [("x=3", 3), ("x=0.5", 0.5), ("x=true", True), ("x=full", "full"), ("x=a=b", "a=b"), ("x=", "")]
)
def test_an_option_is_json_where_it_is_json_and_text_elsewhere(words, value):
    assert cli_pool._pairs("option", [words]) == {"x": value}


def test_status_lists_all_or_tells_of_one(run, net, controller):
    assert "recpool pool submit" in run("pool", "status")[1]
    assert json.loads(run("pool", "status", "--json")[1]) == []
    done = replace(workload("done", phase="succeeded", progress=1.0), result={"loss": 0.25})
    controller.known = {"nightly": workload("nightly", phase="running", device="gpu-0"), "done": done}
    assert run("pool", "status")[1].splitlines() == [
        "nightly  fine-tune, best effort  running on gpu-0",
        "done  fine-tune, best effort  succeeded, 100% done",
    ]
    one = run("pool", "status", "done")[1].splitlines()
    assert "model  fine" in one and "result.loss  0.25" in one
    assert json.loads(run("pool", "status", "done", "--json")[1])["result"] == {"loss": 0.25}


@pytest.mark.parametrize(
    ("before", "words", "said"),
    [
        ("running", ("preempt", "nightly", "--reason", "room"), "preempted: room"),
        ("preempted", ("resume", "nightly"), "queued: resumed"),
        ("running", ("cancel", "nightly"), "cancelled: asked for on the command line"),
        ("running", ("migrate", "nightly", "cpu-0"), "migrating: to cpu-0"),
    ],
)
def test_a_change_says_where_the_workload_stands_then(run, net, controller, before, words, said):
    controller.known = {"nightly": workload("nightly", phase=before)}
    assert run("pool", *words) == (0, f"nightly  fine-tune, best effort  {said}\n", "")


def test_a_change_as_json_is_the_workload(run, net, controller):
    controller.known = {"nightly": workload("nightly", phase="running")}
    assert json.loads(run("pool", "preempt", "nightly", "--json")[1])["phase"] == "preempted"


@pytest.mark.parametrize("words", [("status", "other"), ("preempt", "other"), ("migrate", "nightly", "gpu-9")])
def test_what_does_not_exist_is_exit_code_1_with_what_does(run, net, controller, words):
    controller.known = {"nightly": workload("nightly", phase="running")}
    code, out, err = run("pool", *words)
    assert (code, out) == (1, "")
    assert "known: ['" in err
    assert "Traceback" not in err


def test_a_phase_that_does_not_allow_it_says_which_do(run, net, controller):
    controller.known = {"nightly": workload("nightly", phase="preempted")}
    code, _, err = run("pool", "preempt", "nightly")
    assert code == 1
    assert "may become" in err


@pytest.mark.parametrize("name", ["..", "a/b", "Nightly", "", "x?y"])
def test_a_name_that_none_can_have_asks_nobody(run, net, name):
    for words in (("status", name), ("cancel", name)):
        code, _, err = run("pool", *words)
        assert code == 1
        assert "name" in err
    assert not net.headers


def test_without_a_controller_or_a_service_it_says_what_to_do(run, net, controller):
    controller.error = Unavailable(NO_CONTROLLER)
    assert run("pool", "status") == (1, "", f"recpool: {NO_CONTROLLER}\n")
    net.down = True
    code, _, err = run("pool", "top")
    assert code == 1
    assert "recpool up" in err


def test_a_service_without_a_pool_is_told_from_an_unknown_workload(run, monkeypatch):
    reply = httpx.Response(404, text="<html>nothing here</html>", request=httpx.Request("GET", "http://x"))
    monkeypatch.setattr(pool_ask.plain_http, "request", lambda *_, **__: reply)
    code, _, err = run("pool", "status")
    assert code == 1
    assert "recpool up" in err


def test_the_token_is_sent_only_where_it_is_asked_for(run, serve, controller, tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "token").write_text("5ecret")
    submit = ("pool", "submit", "finetune", "--name", "nightly", "--model", "fine")
    net = serve()
    assert run(*submit)[0] == 0
    controller.known.clear()
    monkeypatch.setenv("RECPOOL_SERVING__HOST", "10.1.2.3")
    outside = serve("10.1.2.3")
    assert run(*submit)[0] == 0
    assert [each.get("authorization") for each in (*net.headers, *outside.headers)] == [None, "Bearer 5ecret"]
    (tmp_path / "run" / "token").unlink()
    code, _, err = run(*submit)
    assert code == 1
    assert "run/token" in err


def test_top_away_from_a_terminal_is_one_picture_as_lines(run, net):
    code, out, _ = run("pool", "top")
    assert code == 0
    assert "gpu-0 gpu (emulated): 30% inference + 40% warm-up + 30% fine-tune" in out
    assert "\x1b" not in out
    assert run("pool", "top", "--once")[1] == out


def test_top_as_json_is_the_report(run, net):
    report = json.loads(run("pool", "top", "--json")[1])
    assert pool_ask.parsed(type(full_report()), report) == full_report()


def test_an_interval_out_of_range_is_refused(run, net):
    assert run("pool", "top", "--interval", "0")[0] == 2


def test_live_it_goes_on_while_the_service_is_away_and_ends_when_interrupted(net, controller, monkeypatch):
    seen: list[int] = []

    def sleep(_: float) -> None:
        seen.append(1)
        net.down = len(seen) == 1
        if len(seen) == 2:
            controller.shown = replace(full_report(), epoch=5)
        if len(seen) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(cli_pool.time, "sleep", sleep)
    console = Console(file=io.StringIO(), force_terminal=True, width=160, height=50)
    cli_pool.watch(Settings(), console, 1.0, full_report())
    said = console.file.getvalue()  # type: ignore
    places = [said.index(text) for text in ("epoch 4", "no service answers", "epoch 5")]
    assert places == sorted(places)
