"""What must be refused, by every way in: with the current book in the message, and nothing changed."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from configs.errors import Conflict, InvalidRequest, NotFound, RecpoolError
from configs.pool_settings import PoolSettings
from configs.settings import Settings
from deployments import pool_ask
from deployments.cli_pool import pool as pool_commands
from deployments.pool_client import PoolClient
from deployments.pool_routes import pool_router
from pool.runtime.applying import Places
from pool.runtime.controller import Clocks, PoolController
from pool.runtime.messages import Factory
from pool.runtime.state import Fenced
from pool.workload import WorkloadSpec
from serving.http import build_http
from tests.unit.deployments.pools import Current, FakeHandle
from tests.unit.pool.runtime.conftest import DEVICES, GIB, Clock, FakeGround

BOOK = "book of epoch 2: gpu-0 [gpu (emulated)] "


class FakeService:
    why_not_ready = None


CURRENT = Current()


@cache
def service() -> Any:
    return build_http(FakeService(), Settings().serving, [pool_router(Settings(), CURRENT)])  # type: ignore


class Reach:
    """One controller with a full and a nearly full device, and three ways to it; each returns the refusal's text."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch):
        settings = PoolSettings.model_validate({"devices": DEVICES})
        self.ground, self.clock = FakeGround(), Clock()
        places = Places(home / "pool", home / "gates", Factory("m:f"), 30.0)
        clocks = Clocks(self.clock.monotonic, self.clock.wall)
        self.controller = PoolController(settings, self.ground, places, clocks=clocks)
        self.controller.start()
        for name, milli in (("big", 900), ("small", 800)):
            self.controller.submit(WorkloadSpec(name=name, kind="warmup", model="m", min_milli=milli, tier=("gpu",)))
        for _ in range(2):
            self._tick()
        handle: Any = FakeHandle(self.controller)  # type: ignore[arg-type]
        handle._controller.error = None
        self.client = PoolClient(lambda: handle)
        CURRENT.target = self.client
        self.app = service()
        monkeypatch.setattr(pool_ask.plain_http, "request", self._request)

    def _tick(self) -> None:
        self.clock.now_s += 0.25
        self.controller.tick()
        for lease in list(self.ground.hosts):
            self.ground.runs(lease)

    def state(self) -> str:
        """All that a refusal must not change."""
        report = asdict(self.controller.report())
        return json.dumps([report["devices"], report["workloads"], report["book"]], sort_keys=True)

    def full(self) -> str:
        """The device with the larger slice."""
        devices = {each.free_milli: each.id for each in self.controller.report().devices}
        return devices[100]

    def python(self, verb: str, *arguments: Any) -> tuple[type, str]:
        with pytest.raises(RecpoolError) as refused:
            asyncio.run(getattr(self.client, verb)(*arguments))
        return type(refused.value), refused.value.message

    def http(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        reply = self._request("POST", f"http://localhost/v1/pool/workloads{path}", 1.0, json=body)
        return reply.status_code, reply.json()["error"]["message"]

    def cli(self, *words: str) -> str:
        done = CliRunner().invoke(pool_commands, list(words))
        assert isinstance(done.exception, RecpoolError), done.output
        return done.exception.message

    def _request(self, method: str, url: str, timeout_s: float, **more: Any) -> httpx.Response:
        async def answer() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport) as client:
                return await client.request(method, url, **more)

        return asyncio.run(answer())


@pytest.fixture
def reach(tmp_path, monkeypatch):
    return Reach(tmp_path, monkeypatch)


@pytest.fixture(autouse=True)
def unchanged(reach):
    """Whatever a test tries, nothing changes."""
    before = reach.state()
    yield
    if reach.controller.closed is None:
        assert reach.state() == before


def declared(**fields: Any) -> dict[str, Any]:
    return {"name": "new", "kind": "warmup", "model": "m", "tier": ["gpu"], **fields}


def words(body: dict[str, Any]) -> list[str]:
    """The same as `recpool pool submit` takes it."""
    options = [f"--{field.replace('_', '-')}={value}" for field, value in body.items() if field not in ("kind", "tier")]
    return ["submit", body["kind"], *options, "--tier=gpu"]


def test_over_commitment_is_refused(reach):
    full = reach.full()
    wanted = f"does not fit on {full}: 100 milli and {GIB} bytes are free for it; book of epoch 2: {full} [gpu"
    kind, message = reach.python("migrate", "small", full)
    assert kind is Conflict and wanted in message and "leased to big 900 milli" in message
    status, message = reach.http("/small/migrate", {"device": full})
    assert status == 409 and wanted in message
    assert wanted in reach.cli("migrate", "small", full)


def test_an_unknown_device_is_refused(reach):
    kind, message = reach.python("migrate", "small", "gpu-9")
    assert kind is NotFound and "no device 'gpu-9'" in message and BOOK in message
    status, message = reach.http("/small/migrate", {"device": "gpu-9"})
    assert status == 404 and "no device 'gpu-9'" in message and BOOK in message
    assert BOOK in reach.cli("migrate", "small", "gpu-9")


@pytest.mark.parametrize("milli", [-1, 0, 1_001, 10**30])
def test_a_share_out_of_0_to_1000_is_refused(reach, milli):
    made = WorkloadSpec.model_construct(**{**WorkloadSpec(**declared()).__dict__, "min_milli": milli})
    kind, message = reach.python("submit", made)
    assert kind is InvalidRequest and message.startswith("min_milli: ") and BOOK in message
    status, message = reach.http("", declared(min_milli=milli))
    assert status == 422 and message.startswith("min_milli: ") and BOOK in message
    message = reach.cli(*words(declared(min_milli=milli)))
    assert message.startswith("min_milli: ") and BOOK in message


def test_memory_above_the_device_is_refused(reach):
    wanted = f"memory_bytes: {GIB + 1} is above the {GIB} of the largest device of its tiers; {BOOK}"
    kind, message = reach.python("submit", WorkloadSpec(**declared(memory_bytes=GIB + 1)))
    assert kind is InvalidRequest and message.startswith(wanted)
    status, message = reach.http("", declared(memory_bytes=GIB + 1))
    assert status == 422 and message.startswith(wanted)
    assert reach.cli(*words(declared(memory_bytes=GIB + 1))).startswith(wanted)


def test_a_lease_on_a_fenced_epoch_is_refused(reach):
    reach.ground.epoch = 3  # another controller has taken over
    with pytest.raises(Fenced):
        reach.controller.tick()
    journal = (reach.controller._places.workloads / "journal.json").read_bytes()
    wanted = "epoch 2 is over"
    kind, message = reach.python("submit", WorkloadSpec(**declared()))
    assert issubclass(kind, Conflict) and wanted in message and BOOK in message
    status, message = reach.http("", declared())
    assert status == 409 and wanted in message and BOOK in message
    message = reach.cli(*words(declared()))
    assert wanted in message and BOOK in message
    assert (reach.controller._places.workloads / "journal.json").read_bytes() == journal


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**64])
def test_options_that_are_no_plain_json_are_refused(reach, value):
    made = WorkloadSpec.model_construct(**{**WorkloadSpec(**declared()).__dict__, "options": {"x": value}})
    kind, message = reach.python("submit", made)
    assert kind is InvalidRequest and message.startswith("options") and BOOK in message
    assert reach.cli(*words(declared()), f"--option=x={2**64}").startswith("options: holds NaN")


def test_without_a_controller_a_wrong_field_is_refused_all_the_same(reach):
    def none() -> Any:
        raise RecpoolError("no controller")

    reach.client._controller, reach.client._find = None, none
    status, message = reach.http("", declared(min_milli=0))
    assert status == 422 and message.startswith("min_milli: ") and "book" not in message
