"""Telling a running cluster what to serve, by Serve's REST interface, and waiting until it does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx

from configs.errors import ConfigError, Unavailable
from configs.settings import Settings
from deployments.cluster import ClusterRecord
from deployments.inference_config import inference_applications
from deployments.plain_http import request
from deployments.plan import Plan
from deployments.scaled_counts import scaled_by_us, with_counts

APPLICATION = "recpool"
IMPORT_PATH = "deployments.app:build_app"
APPLICATIONS_PATH = "/api/serve/applications/"
POLL_S = 0.5
PROXY_LAG_S = 30.0


def serve_config(
    profile: str, settings: Settings, plan: Plan, version: str | None = None, overrides: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The document ``serve deploy`` takes, as plain values.

    The release is in every deployment's ``user_config`` and nowhere else: a document that differs in
    nothing but the version swaps releases inside running replicas.

    Args:
        plan: of these settings and of the cluster the document is for.
    """
    arguments = {"profile": profile, **({"overrides": overrides} if overrides else {})}
    return {
        "proxy_location": "HeadOnly",
        "http_options": {"host": settings.serving.host, "port": settings.serving.port},
        "logging_config": {"enable_access_log": False},
        "applications": [
            {
                "name": APPLICATION,
                "route_prefix": "/",
                "import_path": IMPORT_PATH,
                "args": arguments,
                "deployments": [{"name": each.name, "user_config": {"version": version}} for each in plan.deployments],
                **scaled_by_us(settings),
            },
            *inference_applications(settings, arguments),
        ],
    }


def deploy(record: ClusterRecord, token: str, config: dict[str, Any]) -> None:
    """Hand the document to the cluster; Serve works towards it in the background.

    Raises:
        ConfigError: Serve refuses the document. Unavailable: the cluster does not answer.
    """
    running = _call("GET", record, token)
    found = running.json().get("applications", {}) if running.status_code == 200 else {}
    reply = _call("PUT", record, token, json=with_counts(config, found))
    if reply.status_code != 200:
        raise ConfigError(f"Serve refused the application ({reply.status_code}): {reply.text[-2_000:]}")


def await_ready(
    record: ClusterRecord,
    token: str,
    timeout_s: float,
    version: str | None = None,
    told: Callable[[str], None] = lambda status: None,
) -> None:
    """Return once Serve has carried out the document and the service answers /readyz.

    Args:
        version: the release that must be answering; absent: any.
        told: called with Serve's word for the state, whenever it changes.
    Raises:
        Unavailable: the application failed, or ``timeout_s`` seconds went by; says where it got stuck.
    """
    deadline = time.monotonic() + timeout_s
    last = ""
    while True:
        status, message = application_status(record, token)
        if status != last:
            told(status)
            last = status
            # A running replica has loaded its release or failed to; only the proxy may lag behind it.
            deadline = min(deadline, time.monotonic() + PROXY_LAG_S) if status == "RUNNING" else deadline
        why_not = why_not_ready(record.http, version) if status == "RUNNING" else f"the application is {status}"
        if why_not is None:
            return
        if status == "DEPLOY_FAILED" or time.monotonic() > deadline:
            raise Unavailable(f"not ready: {why_not} {message[-4_000:]}".rstrip())
        time.sleep(POLL_S)


def application_status(record: ClusterRecord, token: str) -> tuple[str, str]:
    """Serve's word for the application's state, and what it says of it; ("ABSENT", "") when there is none."""
    reply = _call("GET", record, token)
    if reply.status_code != 200:
        return "UNKNOWN", reply.text
    found = reply.json().get("applications", {}).get(APPLICATION)
    if not found:
        return "ABSENT", ""
    messages = [found["message"], *(each["message"] for each in found["deployments"].values())]
    return found["status"], "\n".join(filter(None, messages))


def instance_details(record: ClusterRecord, token: str) -> dict[str, Any]:
    """What Serve says of itself and of all its applications. Raises Unavailable when the cluster does not answer."""
    reply = _call("GET", record, token)
    if reply.status_code != 200:
        raise Unavailable(f"the cluster at {record.address} answers {reply.status_code}: {reply.text[:1_000]}")
    return reply.json()


def deployed_arguments(record: ClusterRecord, token: str) -> dict[str, Any]:
    """What the running application was built with: its profile and overrides, as `deployments.app` takes them.

    Raises:
        Unavailable: the cluster does not answer, or serves no such application.
    """
    found = instance_details(record, token).get("applications", {}).get(APPLICATION)
    if not found or not found.get("deployed_app_config"):
        raise Unavailable(f"the cluster at {record.address} serves no {APPLICATION} yet; run `recpool up`")
    return found["deployed_app_config"]["args"]


def why_not_ready(address: str, version: str | None = None) -> str | None:
    """None when the service answers /readyz (and serves ``version``, if given); else the reason."""
    try:
        reply = request("GET", f"{address}/readyz", 2.0)
        if reply.status_code != 200:
            return reply.text[:500]
        if version is not None:
            serving = request("GET", f"{address}/v1/status", 2.0).json()["versions"]
            if serving.get("release") != version:
                return f"serves release {serving.get('release')}, not yet {version}"
    except (httpx.HTTPError, ValueError, KeyError) as error:
        return f"{address} does not answer ({type(error).__name__})"
    return None


def _call(method: str, record: ClusterRecord, token: str, json: dict[str, Any] | None = None) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"}
    url = record.dashboard + APPLICATIONS_PATH
    try:
        # Serve's own start is part of the first call; on a busy machine that takes a while.
        return request(method, url, 120.0, headers=headers, json=json)
    except httpx.HTTPError as error:
        raise Unavailable(f"Ray's dashboard at {record.dashboard} does not answer ({type(error).__name__})") from error
