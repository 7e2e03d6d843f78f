"""A real Triton server, out of nvidia-pytriton's wheel, for benchmarks and tests.

The wheel has the Python backend alone, so a model is served by a few lines of Python that run its ONNX file. The
server wants a distribution's Python 3.11; its environment is that of `benchmarks.peers`, made once below the home's
cache (half a gigabyte, a minute or two) and used again.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.peers import environments
from benchmarks.peers.arms import ARMS, free_port
from benchmarks.peers.servers.on_triton import lay_out_backend
from deployments.processes import end, session_members

READY_S = 60.0
POLL_S = 0.05
ARM = next(arm for arm in ARMS if arm.name == "triton")
MODEL = """import sys

sys.path[:0] = {path!r}
import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        file = args["model_repository"] + "/" + args["model_version"] + "/model.onnx"
        self._session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        self._names = [node.name for node in self._session.get_outputs()]

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        inputs = {{tensor.name(): _given(tensor.as_numpy()) for tensor in request.inputs()}}
        outputs = self._session.run(self._names, inputs)
        return pb_utils.InferenceResponse([pb_utils.Tensor(n, _told(v)) for n, v in zip(self._names, outputs)])


def _given(array):
    return np.vectorize(bytes.decode, otypes=[object])(array) if array.dtype == object else array


def _told(array):
    return np.vectorize(str.encode, otypes=[object])(array) if array.dtype == object else array
"""
"""The backend starts a Python of its own, which knows neither the virtual environment nor PYTHONPATH."""


@dataclass(frozen=True)
class Triton:
    """A running server."""

    http_port: int
    grpc_port: int
    process: subprocess.Popen[bytes]

    @property
    def grpc_url(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    def kill(self) -> None:
        """SIGKILL, to it and to the processes of its models."""
        for member in session_members(self.process.pid, 0.0):
            member.send_signal(signal.SIGKILL)
        self.process.wait()


def environment(home: Path, report: Callable[[str], None] = lambda line: None) -> Path:
    """The interpreter of the server's environment. Raises `benchmarks.peers.arms.NotMeasured` where there is none."""
    return environments.ensure(ARM, home.absolute() / "cache" / "peers", report)


def lay_out(python: Path, config: Path, repository: Path) -> None:
    """Put a model into a repository for the Python backend.

    Args:
        python: of the server's environment.
        config: its ``config.pbtxt`` for an ONNX model, with all tensors, beside folders of versions.
    """
    place = repository / config.parent.name
    text = "\n".join(line for line in config.read_text().splitlines() if not line.startswith(("platform", "backend")))
    for file in config.parent.glob("*/model.onnx"):
        version = place / file.parent.name
        version.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, version / "model.onnx")
        (version / "model.py").write_text(MODEL.format(path=[str(_site(python))]))
    (place / "config.pbtxt").write_text(f'{text}\nbackend: "python"\n')


@contextmanager
def triton_server(python: Path, repository: Path, folder: Path, grpc_port: int | None = None) -> Iterator[Triton]:
    """The server on ports of its own, ready, until the block ends.

    Args:
        folder: existing, for its backends and its log.
        grpc_port: absent: a free one.
    """
    home = _site(python) / "pytriton" / "tritonserver"
    lay_out_backend(home, folder / "backends" / "python")
    http_port, grpc_port = free_port(), grpc_port or free_port()
    with (folder / "triton.log").open("ab") as log:
        process = subprocess.Popen(
            [
                str(home / "bin" / "tritonserver"),
                f"--model-repository={repository}",
                f"--backend-directory={folder / 'backends'}",
                *("--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false"),
                *("--http-address=127.0.0.1", f"--http-port={http_port}"),
                *("--grpc-address=127.0.0.1", f"--grpc-port={grpc_port}"),
                "--allow-metrics=false",
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _await_ready(process, http_port, folder / "triton.log")
        yield Triton(http_port, grpc_port, process)
    finally:
        left = end(session_members(process.pid, 0.0))
        assert not left, f"processes of Triton that do not end: {left}"
        process.wait()


def _await_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until_s = time.monotonic() + READY_S
    while time.monotonic() < until_s and process.poll() is None:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/v2/health/ready", timeout=2, trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(POLL_S)
    raise RuntimeError(f"Triton did not become ready; its log ends:\n{log.read_text(errors='replace')[-3_000:]}")


def _site(python: Path) -> Path:
    return next((python.parent.parent / "lib").glob("python3.*")) / "site-packages"
