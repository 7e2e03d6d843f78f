"""Triton's server out of nvidia-pytriton's wheel, with the funnel in its Python backend.

Run as a program it lays out a model repository and becomes the server.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

from benchmarks.peers.funnel import Config

INSTANCES = 2
ROOT = Path(__file__).resolve().parents[3]
NAME = "funnel"
STUB = "triton_python_backend_stub"
MODEL = """import sys

sys.path[:0] = {path!r}
from benchmarks.peers.servers.triton_model import TritonPythonModel as TritonPythonModel
"""
"""The backend starts a Python of its own, which knows neither the virtual environment nor PYTHONPATH."""


def main(port: int, folder: Path) -> None:
    """Write below ``folder`` and start."""
    site = Path(sysconfig.get_paths()["purelib"])
    home = site / "pytriton" / "tritonserver"
    lay_out_backend(home, folder / "backends" / "python")
    config = Config.load()
    (folder / "models" / NAME / "1").mkdir(parents=True, exist_ok=True)
    (folder / "models" / NAME / "1" / "model.py").write_text(MODEL.format(path=[str(site), str(ROOT)]))
    (folder / "models" / NAME / "config.pbtxt").write_text(_model_config(config.max_batch, config.k))
    server = home / "bin" / "tritonserver"
    os.execv(
        server,
        [
            str(server),
            f"--model-repository={folder / 'models'}",
            f"--backend-directory={folder / 'backends'}",
            "--http-address=127.0.0.1",
            f"--http-port={port}",
            "--allow-grpc=false",
            "--allow-metrics=false",
        ],
    )


def lay_out_backend(home: Path, folder: Path) -> None:
    """Put the backend and the stub for this Python side by side, as the server wants them."""
    folder.mkdir(parents=True, exist_ok=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    parts = [*(home / "backends" / "python").glob("*.*"), home / "python_backend_stubs" / version / STUB]
    for part in parts:
        (folder / part.name).unlink(missing_ok=True)
        (folder / part.name).symlink_to(part)


def _model_config(max_batch: int, k: int) -> str:
    return f"""
name: "{NAME}"
backend: "python"
max_batch_size: {max_batch}
input [ {{ name: "user_id" data_type: TYPE_STRING dims: [ 1 ] }} ]
output [
  {{ name: "ids" data_type: TYPE_STRING dims: [ {k} ] }},
  {{ name: "scores" data_type: TYPE_FP32 dims: [ {k} ] }}
]
dynamic_batching {{ }}
instance_group [ {{ count: {INSTANCES} kind: KIND_CPU }} ]
"""


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
