"""One recommend request from the command line: to the running service, or answered in this process."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from configs.errors import InvalidRequest, RecpoolError, Unavailable
from configs.settings import Settings
from deployments.cluster import http_address
from deployments.launch import title_of
from deployments.plain_http import request

PATH = "/v1/recommend"
TIMEOUT_S = 30.0


def running_service(settings: Settings, body: dict[str, Any]) -> dict[str, Any]:
    """Raises Unavailable when no service answers, InvalidRequest when it refuses."""
    address = http_address(settings)
    try:
        reply = request("POST", address + PATH, TIMEOUT_S, json=body)
    except httpx.HTTPError as error:
        raise Unavailable(f"no service answers at {address}; run `recpool up`, or add --local") from error
    return _checked(reply)


def in_process(settings: Settings, body: dict[str, Any]) -> dict[str, Any]:
    """The same request through the same application without Ray; errors as `running_service`."""
    return asyncio.run(_in_process(settings, body))


async def _in_process(settings: Settings, body: dict[str, Any]) -> dict[str, Any]:
    from serving.http import build_http  # engines take seconds to import; asking a service needs none
    from serving.service import Service

    service = Service(settings)
    try:
        await service.start()
        transport = httpx.ASGITransport(app=build_http(service, settings.serving))
        async with httpx.AsyncClient(transport=transport, base_url="http://recpool", timeout=TIMEOUT_S) as client:
            return _checked(await client.post(PATH, json=body))
    finally:
        await service.close()


def _checked(reply: httpx.Response) -> dict[str, Any]:
    if reply.status_code == 200:
        return reply.json()
    message = f"the service answers {reply.status_code}: {reply.text[:1_000]}"
    if reply.status_code < 500:
        raise InvalidRequest(message)
    raise Unavailable(message) if reply.status_code == Unavailable.status else RecpoolError(message)


def lines(reply: dict[str, Any]) -> list[str]:
    """The slate as text."""
    found = [
        f"{place:3}. {title_of(item)}  [{item['source']}]"
        + (f"  {item['score']:.4f}" if item["score"] is not None else "")
        for place, item in enumerate(reply["items"], 1)
    ]
    found += [f"degraded: {each['stage']}: {each['reason']}" for each in reply["degraded"]]
    return found or ["nothing to recommend"]
