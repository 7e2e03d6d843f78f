"""What the cascade saves and what it costs: against fine-ranking the recall set, and the whole catalogue.

All arms share one release (the quick recipe on the `topn` protocol's training part), one core and one
way of asking. Arms that are compared use the rankers' objectives alone: recall's evidence is the
cascade's by right, but an arm without recall has none, and what is asked here is what cutting costs. The
cascade as it ships, evidence included, is a row of its own. Quality is end-to-end NDCG@10 on the test
items of the same users. Speed is the median over interleaved repeats: latency of one request at a time,
and throughput with requests coalesced into batches, as they are under load.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Floor, is_quick, print_report, print_table
from configs.settings import load_settings
from deployments.console import reporting
from deployments.offline import ensure_dataset, load_dataset
from features.encoding import FIRST_KNOWN
from features.protocols import topn as split_topn
from ranking.objectives import RECALL
from serving.evaluation import BATCH, K, TopN
from serving.types import Candidates, RecallQuery

ALONE, BATCHED = 50, 128
REPEATS = 5
QUALITY_USERS, QUICK_QUALITY_USERS = 1_500, 300
CASCADE, RECALL_SET, EVERYTHING = "cascade", "fine over the recall set", "fine over every item"
SHIPPED = "cascade with recall's evidence"


def main() -> None:
    settings = load_settings().model_copy(update={"home": Path("var")})
    with reporting() as report:
        ensure_dataset(settings, report)
        dataset = load_dataset(settings)
        topn = TopN.build(dataset, split_topn(dataset), "quick", report)
    with topn:
        figures = {name: dict(quality) for name, quality in compare(topn).items()}
    print_table(
        ["arm", "NDCG@10", "R@10", "ms alone", f"requests/s in batches of {BATCH}"],
        [[n, f[f"ndcg@{K}"], f[f"recall@{K}"], f["ms_alone"], f["per_s"]] for n, f in figures.items()],
    )
    fine_all, cascade = figures[EVERYTHING], figures[CASCADE]
    loss = 1 - cascade[f"ndcg@{K}"] / fine_all[f"ndcg@{K}"]
    floors = [
        Floor("cascade throughput over fine-ranking every item", cascade["per_s"] / fine_all["per_s"], 5.0),
        Floor("cascade NDCG loss against fine-ranking every item", loss, 0.01, "lower"),
        Floor(
            "cascade NDCG loss against fine-ranking the recall set",
            1 - cascade[f"ndcg@{K}"] / figures[RECALL_SET][f"ndcg@{K}"],
            0.01,
            "lower",
        ),
    ]
    print_report("cascade", figures, floors)


def compare(topn: TopN) -> dict[str, dict[str, Any]]:
    """Quality of each arm over the same users, and milliseconds a request on a few of them."""
    everything = topn.release.encoder.item_rows
    rankers = {**topn.settings.ranking.weights, RECALL: 0.0}
    arms = {
        CASCADE: topn.cascade(weights=rankers),
        RECALL_SET: topn.cascade(skip=("coarse",), coarse_keep=everything, weights=rankers),
        EVERYTHING: topn.cascade(skip=("coarse",), coarse_keep=everything, weights=rankers, recall=every_item(topn)),
        SHIPPED: topn.cascade(),
    }
    users = QUICK_QUALITY_USERS if is_quick() else QUALITY_USERS
    figures = {name: topn.measure(arm, name, users=users).figures() for name, arm in arms.items()}
    alone: dict[str, list[float]] = {name: [] for name in arms}
    batched: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(REPEATS):
        for name, arm in arms.items():
            alone[name].append(1000 * topn.measure(arm, name, users=ALONE, batch=1).seconds / ALONE)
            batched[name].append(BATCHED / topn.measure(arm, name, users=BATCHED).seconds)
    return {
        name: {
            **figures[name],
            "ms_alone": statistics.median(alone[name]),
            "per_s": statistics.median(batched[name]),
        }
        for name in arms
    }


def every_item(topn: TopN):
    """A recall stage that gives the whole catalogue."""
    items = np.arange(FIRST_KNOWN, topn.release.encoder.item_rows, dtype=np.int32)

    async def call(query: RecallQuery, timeout_s: float) -> Candidates:
        shape = (len(query.users), len(items))
        return Candidates(np.broadcast_to(items, shape).copy(), np.zeros(shape, np.float32), np.ones(shape, np.uint8))

    return call


if __name__ == "__main__":
    main()
