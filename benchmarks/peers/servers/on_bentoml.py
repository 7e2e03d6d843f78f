"""BentoML: one service on two workers, adaptive batching on.

No annotations as text here: the framework makes its schema from them.
"""

# pyright: reportMissingImports=false

import os
from typing import Any

import bentoml

from benchmarks.peers.funnel import Config, Funnel

WORKERS = 2
LAT = int(os.environ.get("LAT", "200"))


@bentoml.service(
    workers=WORKERS,
    traffic={"timeout": 10},
    logging={"access": {"enabled": False}},
    metrics={"enabled": False},
)
class Recommend:
    def __init__(self) -> None:
        self.funnel = Funnel.load()

    @bentoml.api(route="/recommend", batchable=True, max_batch_size=Config.load().max_batch, max_latency_ms=LAT)
    def recommend(self, user_ids: list[str]) -> list[dict[str, Any]]:
        return [{"ids": ids, "scores": scores} for ids, scores in zip(*self.funnel.recommend(user_ids), strict=True)]
