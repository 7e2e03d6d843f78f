"""Items that come, change and go while the service answers: how soon every replica shows it, and what it costs recall.

Changes are sent at the floor's rate beside recommend calls. A prober asks again and again, through the same door
as everybody, what the service knows of the items changed last. A change counts as seen from the last answer on
that did not show it, and that may have come from any replica. Answers to the recommend calls are looked through for
items that were deleted a second before, and for items that come twice. Then a large index in this process has a
fifth of its items changed, and is held against one built afresh.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx
import numpy as np
import orjson

from benchmarks import churn
from benchmarks.live import Live, live_service
from benchmarks.load import Load, Outcomes, poisson, start
from benchmarks.report import Floor, is_quick, print_report, print_table
from features.datasets import Dataset
from features.schema import ITEM_ID

CHANGES_PER_S, BATCH = 500, 25
SECONDS, QUICK_SECONDS = 60.0, 10.0
RATE_PER_S = 20.0
"""Recommend calls beside."""
FOLLOWED = 2
"""Changes of each batch that are probed."""
PROBE_S, WATCHED_S = 0.02, 1.5
"""Between two probes; how long a change is probed."""
ADD, UPDATE, DELETE = "add", "update", "delete"
KINDS = (ADD, ADD, UPDATE, UPDATE, DELETE)
"""In turn."""
SPARED = 600
"""Items added last, which are not deleted: they are still probed."""
VISIBLE_S = 1.0
ITEMS, QUICK_ITEMS = 200_000, 50_000
QUERIES, QUICK_QUERIES = 300, 100
TIMEOUT_MS = 1_000


@dataclass
class Followed:
    """A change that is probed; times of time.monotonic(). ``stale_s``: the last answer that did not show it."""

    item_id: str
    kind: str
    title: str
    made_s: float
    stale_s: float | None = None
    seen: bool = False


@dataclass
class Seen:
    """What became of the changes."""

    changes: int = 0
    refused: int = 0
    calls_failed: int = 0
    followed: list[Followed] = field(default_factory=list)
    deleted: dict[str, float] = field(default_factory=dict)
    """When, by item."""


class Changer:
    """Sends batches at a steady rate; keeps what is followed."""

    def __init__(self, live: Live, seconds: float):
        self._url, self._seconds = f"http://127.0.0.1:{live.port}/v1/items", seconds
        known = Dataset.load(live.settings.dataset_folder).items.column(ITEM_ID).to_pylist()
        self._random = random.Random(5)
        self._random.shuffle(known)
        self._known = itertools.cycle(known)  # so that none changes again while it is probed
        self._added: list[str] = []
        self.seen = Seen()

    def run(self) -> None:
        began_s, period_s, changes = time.monotonic(), BATCH / CHANGES_PER_S, self._endless()
        with httpx.Client(trust_env=False, timeout=10) as client:
            for number in range(int(self._seconds / period_s)):
                time.sleep(max(0.0, began_s + number * period_s - time.monotonic()))
                self._send(client, list(itertools.islice(changes, BATCH)))

    def _send(self, client: httpx.Client, changes: list[tuple[str, dict[str, Any]]]) -> None:
        asked_s = time.monotonic()
        reply = client.post(self._url, json={"changes": [change for _, change in changes]})
        if reply.status_code != 200:
            self.seen.calls_failed += 1
            return
        self.seen.changes += reply.json()["accepted"]
        self.seen.refused += reply.json()["refused"]
        for kind, change in changes:
            if kind == DELETE:
                self.seen.deleted[change["item_id"]] = time.monotonic()
        for kind, change in self._random.sample(changes, FOLLOWED):
            title = change.get("fields", {}).get("title", "")
            self.seen.followed.append(Followed(change["item_id"], kind, title, asked_s))

    def _endless(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Kinds and changes; no item changes again while it may be probed."""
        for number in itertools.count():
            kind, fields = KINDS[number % len(KINDS)], {"title": f"title {self._seconds:g} {number}"}
            if kind == DELETE and len(self._added) > SPARED:
                yield kind, {"item_id": self._added.pop(0), "delete": True}
            elif kind == UPDATE:
                yield kind, {"item_id": next(self._known), "fields": fields}
            else:
                self._added.append(f"new {self._seconds:g} {number}")
                yield ADD, {"item_id": self._added[-1], "fields": fields}


class Prober:
    """Asks for the items that changed last, by way of ``/v1/rank``, until it is told to stop."""

    def __init__(self, live: Live, seen: Seen):
        self._url, self._seen, self._stop = f"http://127.0.0.1:{live.port}/v1/rank", seen, threading.Event()
        self.probes = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        time.sleep(WATCHED_S)
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with httpx.Client(trust_env=False, timeout=10) as client:
            while not self._stop.wait(PROBE_S):
                self._probe(client)

    def _probe(self, client: httpx.Client) -> None:
        now_s = time.monotonic()
        watched = {f.item_id: f for f in self._seen.followed[-200:] if now_s - f.made_s < WATCHED_S}
        if not watched:
            return
        body = {"item_ids": list(watched), "timeout_ms": TIMEOUT_MS}
        reply = client.post(self._url, json=body, headers={"Connection": "close"})
        answered_s = time.monotonic()
        if reply.status_code != 200:
            return
        self.probes += 1
        titles = {item["id"]: item["metadata"].get("title") for item in reply.json()["items"]}
        unknown = set(reply.json()["unknown_item_ids"])
        for item_id, each in watched.items():
            shown = item_id in unknown if each.kind == DELETE else titles.get(item_id) == each.title
            if shown:
                each.seen = True
            else:
                each.stale_s = answered_s


def stream(live: Live, seconds: float) -> tuple[Seen, Outcomes, int]:
    """Changes and recommend calls beside each other."""
    changer = Changer(live, seconds)
    times = poisson(RATE_PER_S, seconds + WATCHED_S, seed=1)
    load = Load(live.port, live.requests(500, k=50, timeout_ms=TIMEOUT_MS), times, keep_bodies=True)
    with start(load) as running:
        prober = Prober(live, changer.seen)
        changer.run()
        prober.stop()
        outcomes = running.outcomes()
    return changer.seen, outcomes, prober.probes


def delays_ms(seen: Seen) -> np.ndarray:
    """From the moment a change was sent to the last answer that did not show it; endless where none ever showed it."""
    last = {each.item_id: each for each in seen.followed}  # an item changed twice is followed by its last change
    stale = [
        (each.stale_s - each.made_s if each.stale_s else 0.0) * 1e3 if each.seen else np.inf for each in last.values()
    ]
    return np.array(stale)


def wrong_answers(seen: Seen, outcomes: Outcomes) -> tuple[int, int]:
    """Items returned a second after they were deleted, and items returned twice in one answer."""
    assert outcomes.bodies is not None
    returned, twice = 0, 0
    for sent_s, body in zip(outcomes.started_s + outcomes.scheduled_s, outcomes.bodies, strict=True):
        if not body or not body.startswith(b'{"recommendation_id"'):
            continue
        ids = [item["id"] for item in orjson.loads(body)["items"]]
        returned += sum(seen.deleted.get(i, np.inf) + VISIBLE_S < sent_s for i in ids)
        twice += len(ids) - len(set(ids))
    return returned, twice


def main() -> None:
    seconds = QUICK_SECONDS if is_quick() else SECONDS
    found = churn.measure(*((QUICK_ITEMS, QUICK_QUERIES) if is_quick() else (ITEMS, QUERIES)))
    print(f"{found.items} items: containment {found.beside:.4f} beside, {found.compacted:.4f} compacted", flush=True)
    with live_service() as live:
        stream(live, 2.0)  # the first changes of a replica read the models that encode items
        seen, outcomes, probes = stream(live, seconds)
    delays, (returned, twice) = delays_ms(seen), wrong_answers(seen, outcomes)
    p50, p99, worst = np.quantile(delays, (0.5, 0.99, 1.0)).tolist()
    summary = outcomes.summary()
    print_table(
        ("changes/s", "followed", "probes", "seen p50 ms", "p99 ms", "worst ms", "recommend p99 ms", "answered"),
        [(seen.changes / seconds, len(delays), probes, p50, p99, worst, summary.p99_ms, summary.answered)],
    )
    print_table(
        ("items", "beside", "compacted", "fresh", "compaction s"),
        [(found.items, found.beside, found.compacted, found.fresh, found.compaction_s)],
    )
    figures = {
        "changes_per_s": seen.changes / seconds,
        "refused": seen.refused,
        "calls_failed": seen.calls_failed,
        "visible_p50_ms": p50,
        "visible_p99_ms": p99,
        "visible_worst_ms": worst,
        "recommend_p99_ms": summary.p99_ms,
        "recommend_answered": summary.answered,
        "churn": asdict(found),
    }
    floors = [
        Floor("changes a second", seen.changes / seconds, 0.98 * CHANGES_PER_S),
        Floor("visible in every replica, p99 s", p99 / 1e3, VISIBLE_S, "lower"),
        Floor("deleted items returned", returned, 0, "lower"),
        Floor("items returned twice", twice, 0, "lower"),
        Floor("recall after churn, of a fresh build", found.worst_of_fresh, 0.98),
    ]
    print_report("stream", figures, floors)


if __name__ == "__main__":
    main()
