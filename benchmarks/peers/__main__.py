"""How many requests a second each server sustains at a p99 within 50 ms, and how it compares with Recpool.

Recpool runs first and its answers to some users are what every other arm must give, item by item; one that does
not is not measured. The peers answer with ids and scores alone; Recpool also with metadata, reasons and versions,
and records the impression. Arms run one after another, never two at once, each beside the load generator.
"""

from __future__ import annotations

import math
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.peers import environments, figures, limit
from benchmarks.peers.answers import ask, check
from benchmarks.peers.arms import ARMS, FASTAPI, NAIVE, RECPOOL, Answer, Arm, NotMeasured, running
from benchmarks.peers.figures import FULL, NAIVE_PER_S, P99_MS, QUICK
from benchmarks.peers.funnel import Config
from benchmarks.report import Floor, is_quick, print_report, print_table
from configs.settings import Settings, load_settings
from deployments.console import reporting
from deployments.offline import ensure_dataset, ensure_release, ensure_store
from features.encoding import Encoder

K = 10
USERS = 2_000
CHECKED, QUICK_CHECKED = 200, 30
LIMIT_S, QUICK_LIMIT_S = 6.0, 1.5
LIMIT_ALONE, LIMIT_BATCHES = "limit, one at a time", "limit, in batches"
NAIVE_TIMES, FASTAPI_TIMES, OTHER_TIMES, LIMIT_SHARE = 10.0, 1.3, 2.0, 0.6


@dataclass(frozen=True)
class Bench:
    """What all arms share."""

    settings: Settings
    folder: Path
    config: Path
    users: Sequence[str]

    @property
    def environments(self) -> Path:
        return self.settings.home.absolute() / "cache" / "peers"


def main(names: Sequence[str] = ()) -> None:
    """Measure all arms, or those named (Recpool always)."""
    settings = load_settings()
    with reporting() as report:
        ensure_dataset(settings, report)
        version = ensure_release(settings, report)
        ensure_store(settings, report)
    chosen = [arm for arm in ARMS if not names or arm.name in (RECPOOL, *names)]
    with tempfile.TemporaryDirectory(prefix="recpool-peers-") as folder:
        bench = prepare(settings, version, Path(folder))
        found = measure_all(bench, chosen)
    found |= measure_limit(settings)
    show(found)


def prepare(settings: Settings, version: str, folder: Path) -> Bench:
    """Write what the funnel is told, and draw the users."""
    release = settings.releases_folder.absolute() / version
    config = Config(
        release=str(release),
        store=str(settings.store_folder.absolute()),
        quotas={name: source.quota for name, source in settings.recall.sources.items()},
        weights={**settings.ranking.weights},
        candidates=settings.recall.candidates,
        coarse_keep=settings.ranking.coarse_keep,
        k=K,
        max_batch=settings.serving.max_batch_rows,
    )
    file = folder / "funnel.json"
    file.write_bytes(orjson.dumps(asdict(config)))
    known = Encoder.load(release / "encoder.json").user_ids.values
    chosen = np.random.default_rng(0).permutation(len(known))[:USERS]
    return Bench(settings, folder, file, [known[i] for i in chosen])


def measure_all(bench: Bench, arms: Sequence[Arm]) -> dict[str, dict[str, Any]]:
    """Figures by arm, or why there are none."""
    found, expected = {}, None
    for arm in arms:
        say(f"{arm.name} ...")
        try:
            found[arm.name], answers = measure_one(bench, arm, expected)
            expected = expected or answers
        except NotMeasured as error:
            if arm.name == RECPOOL:  # the others have nothing to be compared with
                raise
            found[arm.name] = {"failed": str(error)}
            say(f"{arm.name} not measured: {error}")
    return found


def measure_one(bench: Bench, arm: Arm, expected: Sequence[Answer] | None) -> tuple[dict[str, Any], list[Answer]]:
    """Start the arm, compare its answers with the expected ones, measure it."""
    python = environments.ensure(arm, bench.environments, say)
    users = bench.users[: QUICK_CHECKED if is_quick() else CHECKED]
    with running(arm, python, bench.config, bench.folder, users[0], K) as port:
        answers = ask(arm, port, users, K)
        if expected is not None:
            check(expected, answers, users)
        plan = QUICK if is_quick() else FULL
        moderate = NAIVE_PER_S if arm.name == NAIVE else plan.moderate_per_s
        requests = [arm.request(user_id, K) for user_id in bench.users]
        return figures.measure(port, requests, plan, moderate), answers


def measure_limit(settings: Settings) -> dict[str, dict[str, Any]]:
    seconds = QUICK_LIMIT_S if is_quick() else LIMIT_S
    arms = {LIMIT_ALONE: 1, LIMIT_BATCHES: settings.serving.max_batch_rows}
    return {name: limit.measure(batch, seconds) for name, batch in arms.items()}


def show(found: dict[str, dict[str, Any]]) -> None:
    columns = ["per_s", "p50_ms", "p99_ms", "moderate_per_s", "moderate_p50_ms", "moderate_p99_ms"]
    print_table(
        ["arm", f"requests/s at p99 <= {P99_MS:g} ms", "p50 ms", "p99 ms", "moderate/s", "p50 ms", "p99 ms"],
        [[name, *(each.get(column, "-") for column in columns)] for name, each in found.items()],
    )
    for name, each in found.items():
        if "patient_per_s" in each:
            print(f"{name} is over {P99_MS:g} ms at any load: {each['patient_per_s']:.4g}/s at a p99 within 1 s")
        if "failed" in each:
            print(f"{name} not measured: {each['failed']}")
    print_report("peers", found, floors(found))


def floors(found: dict[str, dict[str, Any]]) -> list[Floor]:
    """Recpool's rate over each arm's; NaN, which meets nothing, where an arm has none."""
    ours = found[RECPOOL]["per_s"]
    wanted = {name: OTHER_TIMES for name in found if name not in (RECPOOL, LIMIT_ALONE, LIMIT_BATCHES)}
    wanted |= {name: times for name, times in ((NAIVE, NAIVE_TIMES), (FASTAPI, FASTAPI_TIMES)) if name in wanted}
    ratios = {name: ours / _rate(found[name]) for name in (*wanted, LIMIT_ALONE, LIMIT_BATCHES) if name in found}
    named = [Floor(f"recpool over {name}", ratios[name], times) for name, times in wanted.items()]
    return [*named, Floor(f"recpool over {LIMIT_ALONE}", ratios[LIMIT_ALONE], LIMIT_SHARE)]


def _rate(arm: dict[str, Any]) -> float:
    """Requests/s; of a server that never keeps within 50 ms, the rate it sustains within a second."""
    return arm.get("per_s") or arm.get("patient_per_s") or math.nan


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _leave(number: int, frame: Any) -> None:
    """Unwind, so that a benchmark that is told to end leaves no server behind."""
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _leave)
    main(sys.argv[1:])
