"""BentoML: one service on two workers, adaptive batching on.

No annotations as text here: the framework makes its schema from them.
"""

# pyright: reportMissingImports=false

from typing import Any

import bentoml

from benchmarks.peers.funnel import Config, Funnel

WORKERS = 2
MAX_LATENCY_MS = 100
"""Later answers are refused. Twice the bound under test: what it refuses had failed anyway, and with more it
gathers larger batches and answers later."""


@bentoml.service(
    workers=WORKERS,
    traffic={"timeout": 10},
    logging={"access": {"enabled": False}},
    metrics={"enabled": False},
)
class Recommend:
    def __init__(self) -> None:
        self.funnel = Funnel.load()

    @bentoml.api(
        route="/recommend", batchable=True, max_batch_size=Config.load().max_batch, max_latency_ms=MAX_LATENCY_MS
    )
    def recommend(self, user_ids: list[str]) -> list[dict[str, Any]]:
        return [{"ids": ids, "scores": scores} for ids, scores in zip(*self.funnel.recommend(user_ids), strict=True)]
