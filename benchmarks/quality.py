"""Model quality under three published protocols on MovieLens-1M, beside the published figures.

Each protocol is one `recpool evaluate` command on one thread; as many run side by side as there are
cores. QUICK=1 uses the quick recipe.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.report import Floor, is_quick, print_report, print_table

PUBLISHED_AUC = {
    "ctr-random": {"LR": 0.8699, "FM": 0.8935, "DeepFM": 0.8997, "DCNv2": 0.9000},
    "ctr-time": {"DeepFM": 0.7736, "DCNv2": 0.7870, "DIN": 0.7904},
}
PUBLISHED_TOPN = {
    "Pop": (0.0699, 0.1006),
    "BPR": (0.1725, 0.2407),
    "LightGCN": (0.1857, 0.2489),
    "SimpleX": (0.1997, 0.2700),
    "EASE": (0.2139, 0.2865),
}


def main() -> None:
    protocols = ("topn", "ctr-time", "ctr-random")  # the longest first
    with ThreadPoolExecutor(os.cpu_count()) as side_by_side:
        found: dict[str, Any] = dict(zip(protocols, side_by_side.map(run, protocols), strict=True))
    for protocol, published in PUBLISHED_AUC.items():
        ours = [[f"Recpool {name}", found[protocol][name]["auc"]] for name in ("fine", "coarse")]
        print(f"\n{protocol}: {found[protocol]['rows']['all']} rows")
        print_table(["model", "test AUC"], [*([name, value] for name, value in published.items()), *ours])
    topn = found["topn"]
    print(f"\ntopn: {topn['rows']['all']} rows, full ranking")
    ours = [[f"Recpool {arm}", *figures(topn[arm])] for arm in ("recall", "cascade")]
    print_table(["model", "R@10", "NDCG@10"], [*([name, *both] for name, both in PUBLISHED_TOPN.items()), *ours])
    recall, ndcg = figures(topn["recall"])
    print(f"to EASE: R@10 {recall - PUBLISHED_TOPN['EASE'][0]:+.4f}, NDCG@10 {ndcg - PUBLISHED_TOPN['EASE'][1]:+.4f}\n")
    floors = [
        Floor("ctr-random fine AUC", found["ctr-random"]["fine"]["auc"], 0.900),
        Floor("ctr-random coarse AUC", found["ctr-random"]["coarse"]["auc"], 0.893),
        Floor("ctr-time fine AUC", found["ctr-time"]["fine"]["auc"], 0.787),
        Floor("topn recall stage R@10", recall, 0.1857),
        Floor("topn recall stage NDCG@10", ndcg, 0.2489),
    ]
    print_report("quality", found, floors)


def run(protocol: str) -> dict[str, Any]:
    """The command a user would give; its progress goes to standard error."""
    recipe = "quick" if is_quick() else "full"
    command = [
        sys.executable,
        "-m",
        "deployments.cli",
        "evaluate",
        "--protocol",
        protocol,
        "--recipe",
        recipe,
        "--json",
    ]
    print("$ recpool " + " ".join(command[3:]), flush=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout)


def figures(arm: dict[str, float]) -> tuple[float, float]:
    return arm["recall@10"], arm["ndcg@10"]


if __name__ == "__main__":
    main()
