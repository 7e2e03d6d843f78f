"""The gateway keeps serving what it serves, and its health is that of the request path."""

from __future__ import annotations

import pytest
from fastapi import FastAPI, Response

from configs.errors import ArtifactError, Unavailable
from deployments.gateway import Gateway, probe

Plain = Gateway.__mro__[1]  # the class below Serve's wrapper, which only runs inside a replica


class FakeService:
    """Loads any version but "damaged" (a release that is wrong) and "bug" (a program that is)."""

    def __init__(self) -> None:
        self.version: str | None = None

    @property
    def ready(self) -> bool:
        return self.version is not None

    async def start(self) -> None:
        self.version = "champion"

    async def load(self, version: str | None) -> None:
        if version == "damaged":
            raise ArtifactError("release damaged: encoder.json differs from its checksum")
        if version == "bug":
            raise KeyError("encoder")
        self.version = version or "champion"


def app(status: int) -> FastAPI:
    http = FastAPI()

    @http.post("/v1/recommend")
    async def recommend() -> Response:
        return Response(status_code=status)

    return http


@pytest.fixture
def gateway():
    gateway = Plain.__new__(Plain)
    gateway._service, gateway._http = FakeService(), app(200)
    return gateway


async def test_without_a_choice_the_champion_is_loaded(gateway):
    await gateway.reconfigure({"version": None})
    assert gateway._service.version == "champion"


@pytest.mark.parametrize("wrong", ["damaged", "bug"])
async def test_a_release_that_fails_to_load_leaves_the_old_one_serving(gateway, wrong):
    await gateway.reconfigure({"version": "1"})
    await gateway.reconfigure({"version": wrong})
    assert gateway._service.version == "1"


async def test_a_gateway_whose_first_release_is_damaged_starts_and_is_not_ready(gateway):
    await gateway.reconfigure({"version": "damaged"})
    assert not gateway._service.ready
    await gateway.check_health()


async def test_a_bug_at_the_first_load_is_raised_for_serve_to_report(gateway):
    with pytest.raises(KeyError):
        await gateway.reconfigure({"version": "bug"})


@pytest.mark.parametrize("status", [200, 429, 503])
async def test_an_answer_or_a_refusal_is_a_sign_of_life(status):
    await probe(app(status))


@pytest.mark.parametrize("status", [500, 504])
async def test_a_broken_request_path_is_unhealthy(gateway, status):
    gateway._http = app(status)
    await gateway.reconfigure({"version": "1"})
    with pytest.raises(Unavailable, match=str(status)):
        await gateway.check_health()
