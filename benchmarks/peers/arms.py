"""The arms: how each server is started, asked and understood. Every one calls `benchmarks.peers.funnel`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson

from benchmarks.live import live_service
from benchmarks.load import post
from benchmarks.peers.funnel import CONFIG
from deployments.processes import end, session_members

ROOT = Path(__file__).resolve().parents[2]
SERVERS = "benchmarks.peers.servers"
READY_S = 180.0
POLL_S = 0.1
Answer = tuple[list[str], list[float]]
"""Item ids and scores, best first."""
RECPOOL, NAIVE, FASTAPI = "recpool", "naive-serve", "fastapi"


class NotMeasured(Exception):
    """Why an arm has no figures."""


@dataclass(frozen=True)
class Arm:
    """One server.

    Attributes:
        path: of the request.
        body: a request for one user, before JSON.
        answer: what the decoded reply says.
        command: arguments of the environment's Python, from a port and a folder to write to; None: `recpool up`.
        python: the interpreter its environment is made from.
        variables: of the server's environment.
    """

    name: str
    path: str
    body: Callable[[str, int], dict[str, Any]]
    answer: Callable[[Any], Answer]
    command: Callable[[int, Path], Sequence[str]] | None
    python: str = sys.executable
    variables: tuple[tuple[str, str], ...] = ()

    def request(self, user_id: str, k: int) -> bytes:
        return post(self.path, orjson.dumps(self.body(user_id, k)))

    def understand(self, reply: bytes) -> Answer:
        return self.answer(orjson.loads(reply))


def _module(name: str) -> Callable[[int, Path], Sequence[str]]:
    return lambda port, folder: ("-m", f"{SERVERS}.on_{name}", str(port), str(folder))


def _uvicorn(port: int, folder: Path) -> Sequence[str]:
    options = ("--workers", "2", "--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning")
    return ("-m", "uvicorn", f"{SERVERS}.on_fastapi:app", "--port", str(port), *options)


def _bentoml(port: int, folder: Path) -> Sequence[str]:
    options = ("--host", "127.0.0.1", "--port", str(port))
    return ("-m", "bentoml", "serve", f"{SERVERS}.on_bentoml:Recommend", *options)


def _open_inference(user_id: str, k: int) -> dict[str, Any]:
    return {"inputs": [{"name": "user_id", "shape": [1, 1], "datatype": "BYTES", "data": [user_id]}]}


def _from_open_inference(reply: Any) -> Answer:
    outputs = {output["name"]: output["data"] for output in reply["outputs"]}
    return outputs["ids"], outputs["scores"]


def _plain(user_id: str, k: int) -> dict[str, Any]:
    return {"user_id": user_id}


def _from_plain(reply: Any) -> Answer:
    return reply["ids"], reply["scores"]


def _from_recpool(reply: Any) -> Answer:
    if reply["degraded"]:
        raise ValueError(f"a degraded answer: {reply['degraded']}")
    return [item["id"] for item in reply["items"]], [item["score"] for item in reply["items"]]


OPEN_INFERENCE = "/v2/models/funnel/infer"
ARMS = (
    Arm(RECPOOL, "/v1/recommend", lambda user_id, k: {"user_id": user_id, "k": k}, _from_recpool, None),
    Arm(FASTAPI, "/recommend", _plain, _from_plain, _uvicorn),
    Arm("litserve", "/recommend", _plain, _from_plain, _module("litserve")),
    Arm(
        "bentoml",
        "/recommend",
        lambda user_id, k: {"user_ids": [user_id]},
        lambda reply: _from_plain(reply[0]),
        _bentoml,
        variables=(("BENTOML_DO_NOT_TRACK", "True"),),
    ),
    Arm("mlserver", OPEN_INFERENCE, _open_inference, _from_open_inference, _module("mlserver")),
    # Its Python backend needs the distribution's interpreter, with which its stub was built.
    Arm("triton", OPEN_INFERENCE, _open_inference, _from_open_inference, _module("triton"), "/usr/bin/python3"),
    Arm(NAIVE, "/recommend", _plain, _from_plain, _module("naive_serve")),
)


@contextmanager
def running(arm: Arm, python: Path, config: Path, folder: Path, user_id: str, k: int) -> Iterator[int]:
    """The arm's server on a port, answering, until the block ends.

    Args:
        python: of the arm's environment.
        config: file of `funnel.Config`. folder: existing, for what the server writes.
    Raises:
        NotMeasured: it did not come to answer; with the end of its log.
    """
    if arm.command is None:
        with live_service() as live:
            yield live.port
        return
    port, log = free_port(), folder / f"{arm.name}.log"
    with log.open("wb") as stream:
        server = subprocess.Popen(
            [str(python), *arm.command(port, folder / arm.name)],
            cwd=ROOT,
            env=_environment(arm, config),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    try:
        _await_answer(arm, server, port, log, user_id, k)
        yield port
    finally:
        left = end(session_members(server.pid, 0.0))
        assert not left, f"{arm.name}: processes that do not end: {left}"
        server.wait()


def _environment(arm: Arm, config: Path) -> dict[str, str]:
    """This process's environment without what would reach into another Ray, and with one thread a library."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "RECPOOL_"))}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**kept, **threads, "PYTHONPATH": str(ROOT), CONFIG: str(config), **dict(arm.variables)}


def _await_answer(arm: Arm, server: subprocess.Popen, port: int, log: Path, user_id: str, k: int) -> None:
    until = time.monotonic() + READY_S
    with httpx.Client(timeout=5, trust_env=False) as client:
        while time.monotonic() < until and server.poll() is None:
            try:
                reply = client.post(f"http://127.0.0.1:{port}{arm.path}", json=arm.body(user_id, k))
                if reply.status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(POLL_S)
    said = log.read_text(encoding="utf-8", errors="replace")[-2_000:]
    raise NotMeasured(f"the server did not come to answer; its log ends:\n{said}")


def free_port() -> int:
    """A free port whose successor is free too: some servers need a second one."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port
