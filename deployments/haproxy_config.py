"""Rewrites the configuration that Serve generates for HAProxy.

Serve's template has no setting for most of what is wanted here: addresses of the statistics pages,
timeouts in milliseconds, a bound on what a replica works on at once, priorities, refusals. So Serve is
given a launcher in place of the binary, which does the rewriting at every start and reload
(`deployments.haproxy_launcher`). Only the standard library is used, so that it starts in no time.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass

CALL = "method POST"
"""A request that takes work and may be refused; the others ask how the service is."""
BACKEND_PREFIX = "backend http-"
STANDBY = "-standby"
"""Ends the name of a replica's second entry, which is used when no replica serves any more."""
INFERENCE = "http-recpool-inference"
"""The backend of models as a service (`deployments.inference_config`). Each model has a queue of its own, in which
batches form, so replicas are given what comes; answers may take long, and errors are told as Triton tells them."""
MODEL_CALL_MS, MODEL_LOAD_MS = 60_000, 600_000
MODEL_INFLIGHT = 4_096
LEAST_RETRIES, FOUND_DEAD = 3, 4
"""Of a call; and how often it may find each entry dead."""
HIGH, STATUS = -100, -200
"""Priority classes; the lowest number is taken from the queue first, and 0 is a normal request's."""
DROPPED = ("log global", "option httplog", "option log-health-checks")
"""A line of log a request costs more than it is worth here."""
OVERLOADED = "too many requests wait; try again in a second, or add replicas"
UNAVAILABLE = "no replica took the request in time; try again in a second"
LATE = "no replica answered in time; try again"


@dataclass(frozen=True)
class Rules:
    """What is written into the configuration; times in milliseconds.

    Attributes:
        connect_ms: after which a connection counts as failed; as long a retry waits when one replica is left.
        answer_ms: after which another replica is asked. other_ms: the same for what is not a call.
        max_inflight: calls given to one replica at a time; the others wait here.
        queue: waiting calls from which a further one is refused, by priority.
        low_ms: a low one goes behind normal ones that come this much later; behind all it might wait in vain.
        shadows: some replicas stand by; see `_of_replica`.
        stopped_ms: how long a signal may have stopped a replica before it is ended; 0: as long as it likes.
    """

    binary: str
    stats_port: int
    metrics_port: int
    connect_ms: int
    answer_ms: int
    other_ms: int
    check_ms: int
    queue_ms: int
    max_inflight: int
    queue: dict[str, int]
    low_ms: int = 50
    shadows: bool = False
    stopped_ms: int = 0

    def dumps(self) -> str:
        return json.dumps(asdict(self))


class Unexpected(Exception):
    """Serve generated a configuration in which a place to write to is missing."""


@dataclass(frozen=True)
class Server:
    """A replica as the configuration has it: ``backend`` and ``name`` are HAProxy's, ``line`` is its line."""

    backend: str
    name: str
    address: str
    line: str

    def is_of(self, replicas: Collection[str]) -> bool:
        """Whether it is one of these replicas, by their ids; Serve ends its names with them."""
        return self.name.rpartition("-")[2] in replicas


def rewritten(config: str, rules: Rules, standing_by: Collection[str] = ()) -> str:
    """The configuration with the rules in it; what was rewritten before stays as it is.

    Args:
        standing_by: ids of replicas that are to get no calls while others serve.
    Raises:
        Unexpected: Serve's template is not the one this was written for; names what is missing.
    """
    if _MARK in config:
        return config
    servers = [server for server, _ in _servers(config.splitlines()) if server is not None]
    entries = sum(len(_of_replica(server, rules, standing_by)) for server in servers)
    edits = {
        # Those of a device die together. Each is found dead once by a connection, and by some that were kept open.
        ("defaults", "retries"): [f"retries {max(LEAST_RETRIES, FOUND_DEAD * entries)}"],
        ("defaults", "timeout server"): _defaults(rules),
        ("defaults", "timeout connect"): [f"timeout connect {rules.connect_ms}ms"],
        ("defaults", "errorfile 502"): [],
        ("defaults", "errorfile 503"): [],
        ("defaults", "errorfile 504"): [],
        ("frontend prometheus", f"bind :{rules.metrics_port}"): [f"bind 127.0.0.1:{rules.metrics_port}"],
        ("listen stats", f"bind *:{rules.stats_port}"): [f"bind 127.0.0.1:{rules.stats_port}"],
    }
    done, lines, section = set(), [_MARK], ""
    for line in config.splitlines():
        text = line.strip()
        if text and line[0] not in " \t#":
            section = text
        place = next((each for each in edits if each[0] == section and text.startswith(each[1])), None)
        if place is not None:
            done.add(place)
            lines += [f"    {new}" for new in edits[place]]
        elif text not in DROPPED:
            is_backend = text == section and section.startswith(BACKEND_PREFIX)
            of_backend = _of_models(rules) if section.split()[-1:] == [INFERENCE] else _of_calls(rules)
            lines += [line, *(f"    {new}" for new in (of_backend if is_backend else []))]
    missing = edits.keys() - done
    if missing:
        raise Unexpected(f"HAProxy's configuration has no {sorted(' / '.join(place) for place in missing)}")
    bounded = (new for server, line in _servers(lines) for new in (_of_replica(server, rules, standing_by) or [line]))
    return "\n".join(bounded) + "\n"


def replicas(config: str) -> list[Server]:
    """Those that a configuration has, without the entries that are a last resort."""
    return [server for server, _ in _servers(config.splitlines()) if server is not None]


_MARK = "# recpool"


def _defaults(rules: Rules) -> list[str]:
    return [
        f"timeout server {rules.answer_ms}ms",
        f"timeout check {rules.check_ms}ms",
        f"timeout queue {rules.queue_ms}ms",
        _error(502, "Unavailable", UNAVAILABLE),
        _error(503, "Unavailable", UNAVAILABLE),
        _error(504, "Unavailable", LATE),
    ]


def _of_calls(rules: Rules) -> list[str]:
    """What is done with each request on its way to the replicas."""
    wheres = {"low": "is_low", "normal": "!is_high !is_low", "high": "is_high"}
    return [
        f"acl is_call {CALL}",
        "acl is_high req.hdr(X-Priority) -m str high",
        "acl is_low req.hdr(X-Priority) -m str low",
        # Only what is here whole can be sent again; a body often comes in a packet of its own.
        f"http-request wait-for-body time {rules.other_ms}ms if is_call",
        *(f"{_refusal()} if is_call {where} {{ queue ge {rules.queue[name]} }}" for name, where in wheres.items()),
        # One key for all attempts at a request, so that what it records is recorded once.
        "http-request set-header Idempotency-Key %[uuid()] if is_call !{ req.hdr(Idempotency-Key) -m found }",
        "http-request set-header X-Request-Start t=%[date(0,ms)]",
        f"http-request set-priority-class int({HIGH}) if is_call is_high",
        f"http-request set-priority-offset int({rules.low_ms}) if is_call is_low",
        f"http-request set-priority-class int({STATUS}) if !is_call",
        f"http-request set-timeout server {rules.other_ms}ms if !is_call",
    ]


def _of_models(rules: Rules) -> list[str]:
    """The same for requests to models: a call computes, so it may be made twice; loading a model takes its time."""
    return [
        "acl is_call path_end /infer",
        f"http-request wait-for-body time {rules.other_ms}ms if is_call",
        f"http-request set-timeout server {MODEL_CALL_MS}ms if is_call",
        f"http-request set-timeout server {MODEL_LOAD_MS}ms if !is_call",
    ]


def _servers(lines: Iterable[str]) -> Iterator[tuple[Server | None, str]]:
    """Each line, and the replica that it is the entry of; Serve's own proxy, the last resort, is none."""
    section = ""
    for line in lines:
        if line and line[0] not in " \t#":
            section = line.strip()
        words = line.split()
        is_replica = section.startswith(BACKEND_PREFIX) and words[:1] == ["server"] and words[-1] != "backup"
        yield Server(section.split()[1], words[1], words[2], line) if is_replica else None, line


def _of_replica(server: Server | None, rules: Rules, standing_by: Collection[str]) -> list[str]:
    """Bound what a replica is given at a time, and nothing else: Serve's proxy, the last resort, has no bound.

    A replica that refuses a connection is dead. It would have the fewest calls, and so be chosen again and again,
    were it not taken out at once; checks bring it back.

    One that stands by has weight 0, which may be changed at run time. HAProxy gives it no call then, not even as
    the last there is. So each has a second entry, a backup: when no replica with a weight is left, calls go there
    within the same retry, whether or not anybody has told HAProxy. It has checks of its own: one that tracked an
    entry without weight would take no call from the queue.
    """
    if server is None:
        return []
    bound = f" maxconn {MODEL_INFLIGHT if server.backend == INFERENCE else rules.max_inflight}"
    weight = " weight 0" if server.is_of(standing_by) else ""
    watched = " observe layer4 error-limit 1 on-error mark-down"
    first = f"{server.line}{bound}{watched}{weight}"
    if not rules.shadows or server.backend == INFERENCE:
        return [first]
    standby = server.line.replace(server.name, f"{server.name}{STANDBY}", 1)
    return [first, f"{standby}{bound}{watched} backup"]


def _error(status: int, kind: str, message: str) -> str:
    return f"http-error status {status} {_body(kind, message)}"


def _refusal() -> str:
    return f"http-request return status 429 {_body('Overloaded', OVERLOADED)}"


def _body(kind: str, message: str) -> str:
    body = json.dumps({"error": {"type": kind, "message": message, "field": None}}, separators=(",", ":"))
    return f"content-type application/json string '{body}' hdr Retry-After 1"
