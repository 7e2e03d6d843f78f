"""One request for the pool from the command line to the running service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError

from configs.errors import Conflict, DeadlineExceeded, InvalidRequest, NotFound, Overloaded, RecpoolError, Unavailable
from configs.settings import Settings
from deployments import plain_http
from deployments.cluster import http_address
from deployments.environment import Folders
from deployments.pool_rules import PREFIX, checked_name, is_loopback

WORKLOADS = f"{PREFIX}/workloads"
TIMEOUT_S = 30.0
_REFUSALS = {
    kind.status: kind for kind in (NotFound, Conflict, InvalidRequest, Overloaded, DeadlineExceeded, Unavailable)
}
Message = TypeVar("Message")


def look(settings: Settings, path: str) -> Any:
    """What the service has at a path.

    Raises:
        Unavailable: no service answers, or it has no pool. NotFound: it knows no such thing.
    """
    return _ask(settings, "GET", path)


def change(settings: Settings, path: str, body: Mapping[str, Any]) -> Any:
    """What the service says to a change, made with the token of the settings' home where one is needed.

    Raises as `look`; InvalidRequest naming the field; Conflict when the workload's state does not allow it.
    """
    return _ask(settings, "POST", path, json=dict(body), headers=_token(settings))


def parsed(kind: type[Message], document: Any) -> Message:
    """A message of `pool.views` from the document it came as. Raises Unavailable when it is none."""
    try:
        return TypeAdapter(kind).validate_python(document)
    except ValidationError as error:
        raise Unavailable(f"the service answers with something else than a {kind.__name__}: {error}") from error


def workload_path(name: str, *what: str) -> str:
    """Raises InvalidRequest when no workload can have the name."""
    return "/".join([WORKLOADS, checked_name(name), *what])


def _ask(settings: Settings, method: str, path: str, **more: Any) -> Any:
    address = http_address(settings)
    try:
        reply = plain_http.request(method, address + path, TIMEOUT_S, **more)
        said = reply.json()
    except (httpx.HTTPError, ValueError) as error:
        raise Unavailable(f"no service answers at {address}; run `recpool up`") from error
    if reply.is_success:
        return said
    try:
        message = str(said["error"]["message"])
    except (KeyError, TypeError):
        message = f"the service answers {reply.status_code}: {reply.text[:1_000]}"
    raise _REFUSALS.get(reply.status_code, RecpoolError)(message)


def _token(settings: Settings) -> dict[str, str]:
    """Only for a service that asks for it: a program that took the port of one that does not should not learn it."""
    if is_loopback(settings.serving.host):
        return {}
    try:
        token = Folders(settings.home).token.read_text(encoding="utf-8").strip()
    except OSError:
        return {}
    return {"Authorization": f"Bearer {token}"}
