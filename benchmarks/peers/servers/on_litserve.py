"""LitServe: two workers, requests batched while one is at work, ZeroMQ between the processes as its documentation
advises above 100 requests a second."""

# pyright: reportMissingImports=false

from __future__ import annotations

import sys
from typing import Any

import litserve

from benchmarks.peers.funnel import Config, Funnel

WORKERS = 2
BATCH_TIMEOUT_S = 0.005
"""With none the workers spin while they wait, which on a full machine costs more than the wait."""


class Recommend(litserve.LitAPI):
    """The server finds arguments by the names ``request`` and ``output``, and reads the annotation of the first: with
    one that is not a class of the web framework's it would look for the request in the query string."""

    def setup(self, device: str) -> None:
        self.funnel = Funnel.load()

    def decode_request(self, request) -> str:
        return request["user_id"]

    def batch(self, inputs: list[str]) -> list[str]:
        return inputs

    def predict(self, x: list[str]) -> list[tuple[list[str], list[float]]]:
        return list(zip(*self.funnel.recommend(x), strict=True))

    def unbatch(self, output: list[Any]) -> list[Any]:
        return output

    def encode_response(self, output):
        return {"ids": output[0], "scores": output[1]}


def main(port: int) -> None:
    api = Recommend(max_batch_size=Config.load().max_batch, batch_timeout=BATCH_TIMEOUT_S, api_path="/recommend")
    server = litserve.LitServer(api, accelerator="cpu", devices=1, workers_per_device=WORKERS, fast_queue=True)
    server.run(host="127.0.0.1", port=port, log_level="error", generate_client_file=False, access_log=False)


if __name__ == "__main__":
    main(int(sys.argv[1]))
