"""MLServer: two workers behind its adaptive batching.

Run as a program it writes its settings and becomes the server.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import mlserver
import orjson
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput

from benchmarks.peers.funnel import Config, Funnel

WORKERS = 2
NAME = "funnel"
MAX_BATCH_TIME_S = 0.005
"""Longest wait for a batch to fill; a tenth of the bound on latency."""


class Recommend(mlserver.MLModel):
    async def load(self) -> bool:
        self._funnel = Funnel.load()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """User ids of all requests of a batch, one after another."""
        given = [each.decode() if isinstance(each, bytes) else each for each in payload.inputs[0].data]
        ids, scores = self._funnel.recommend(given)
        outputs = [_output("ids", "BYTES", ids), _output("scores", "FP64", scores)]
        return InferenceResponse(model_name=self.name, outputs=outputs)


def _output(name: str, datatype: str, rows: list[list[Any]]) -> ResponseOutput:
    flat = [value for row in rows for value in row]
    return ResponseOutput(name=name, shape=[len(rows), len(rows[0])], datatype=datatype, data=flat)


def main(port: int, folder: Path) -> None:
    """Write the settings below ``folder`` and start. gRPC takes the port after the given one."""
    (folder / NAME).mkdir(parents=True, exist_ok=True)
    settings = {
        "host": "127.0.0.1", "http_port": port, "grpc_port": port + 1, "metrics_endpoint": None,
        "debug": False, "parallel_workers": WORKERS, "gzip_enabled": False,
        "environments_dir": str(folder / "environments"), "metrics_dir": str(folder),
    }  # fmt: skip
    model = {
        "name": NAME,
        "implementation": "benchmarks.peers.servers.on_mlserver.Recommend",
        "max_batch_size": Config.load().max_batch,
        "max_batch_time": MAX_BATCH_TIME_S,
    }
    (folder / "settings.json").write_bytes(orjson.dumps(settings))
    (folder / NAME / "model-settings.json").write_bytes(orjson.dumps(model))
    server = Path(sys.executable).parent / "mlserver"
    os.execv(server, [str(server), "start", str(folder)])


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
