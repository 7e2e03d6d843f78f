"""From events to a better release in production, with the service under load all along.

A change of taste is planted: of the items of two genres some users come to like one and dislike the other, and as many
users the other way round; each tells of another half of either. Their ratings come as events; then a fine-tune is sent
by ``ray job submit``, which adds the events to the dataset, trains in the pool from the champion's weights, and rolls
its release out through gate, shadow and canary. The figure is how well the rest of the liked genre, of which no event
tells, is ranked above the rest of the other: by the old release before the events, by the old release with the events
in its users' histories, and by the new one. What is the same for everybody helps nobody here. Users without such events
are asked for the first genre.
"""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import orjson

from benchmarks.live import Live, live_service
from benchmarks.load import Load, poisson, start
from benchmarks.phases import COLUMNS, SETTLE_S, Phase, Rolled, Watch, noticed, worst_p99_ms
from benchmarks.report import Floor, is_quick, print_report, print_table
from deployments.cluster import Cluster
from features.datasets import Dataset, distinct
from features.metrics import auc
from features.schema import ITEM_ID, USER_ID

RATE = 40.0
BEFORE_S, QUICK_BEFORE_S = 30.0, 8.0
USERS, QUICK_USERS = 300, 150
ASKED = 100
"""Users of each kind whose ranking is looked at."""
FIELD, GENRES = "genre", ("Horror", "Romance")
ITEMS = 60
"""Of each genre."""
POPULAR = (50, 300)
"""Events that an item has already."""
LIKED, DISLIKED = 5.0, 1.0
EPOCHS = 2
ROWS, QUICK_ROWS = 60_000, 30_000
BATCH = 50
LONGEST_S = 1_500.0
P99_FLOOR = 1.25
LEAST_GAIN = 0.05
"""Own floor, of the AUC."""
FULL = b'"returned":10,'


@dataclass(frozen=True)
class Taste:
    """What was planted.

    Attributes:
        ratings: for each changed user, what their events say of items.
        wanted: for each user who is asked, items of the liked set that no event of theirs names.
        others: the same of the other set.
        changed: of those who are asked, the ones with events.
    """

    ratings: dict[str, dict[str, float]]
    wanted: dict[str, list[str]]
    others: dict[str, list[str]]
    changed: list[str]

    @classmethod
    def plant(cls, dataset: Dataset, users: int, seed: int = 5) -> Taste:
        rng = np.random.default_rng(seed)
        sets = [_of_genre(dataset, genre, other, rng) for genre, other in (GENRES, GENRES[::-1])]
        everybody = dataset.users.column(USER_ID).to_pylist()
        drawn = [everybody[place] for place in rng.permutation(len(everybody))[: users + ASKED]]
        likes = {user: sets if number % 2 else sets[::-1] for number, user in enumerate(drawn[:users])}
        ratings = {
            user: {
                items[place]: value
                for items, value in zip(pair, (LIKED, DISLIKED), strict=True)
                for place in rng.permutation(ITEMS)[: ITEMS // 2]
            }
            for user, pair in likes.items()
        }
        asked, met = [*drawn[:ASKED], *drawn[users:]], _met(dataset, drawn)
        for user in ratings:
            met[user] |= ratings[user].keys()
        rest = [
            {user: [i for i in likes.get(user, sets)[side] if i not in met[user]] for user in asked} for side in (0, 1)
        ]
        return cls(ratings, rest[0], rest[1], drawn[:ASKED])

    def events(self) -> list[dict[str, Any]]:
        """In a random order, so that none of a user's are the newest."""
        told = [(user, item, value) for user, items in self.ratings.items() for item, value in items.items()]
        order = np.random.default_rng(0).permutation(len(told))
        return [
            {
                "event_id": f"taste-{n}",
                "kind": "rating",
                "value": told[n][2],
                "user_id": told[n][0],
                "item_id": told[n][1],
            }
            for n in order.tolist()
        ]


def _of_genre(dataset: Dataset, genre: str, other: str, rng: np.random.Generator) -> list[str]:
    """Middling items of one genre and not of the other."""
    names, places = distinct(dataset.interactions.column(ITEM_ID))
    counts = dict(zip(names, np.bincount(places, minlength=len(names)).tolist(), strict=True))
    rows = zip(dataset.items.column(ITEM_ID).to_pylist(), dataset.items.column(FIELD).to_pylist(), strict=True)
    fitting = [item for item, genres in rows if genre in (genres or ()) and other not in genres]
    middling = [item for item in fitting if POPULAR[0] <= counts.get(item, 0) <= POPULAR[1]]
    return [middling[place] for place in rng.permutation(len(middling))[:ITEMS]]


def _met(dataset: Dataset, users: Sequence[str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {user: set() for user in users}
    rows = dataset.interactions
    for user, item in zip(rows.column(USER_ID).to_pylist(), rows.column(ITEM_ID).to_pylist(), strict=True):
        if user in found:
            found[user].add(item)
    return found


@dataclass(frozen=True)
class Ranked:
    """AUC of one set's items over the other's, the mean of users: those who changed, and the rest."""

    changed: float
    unchanged: float

    @classmethod
    def by(cls, live: Live, taste: Taste) -> Ranked:
        with httpx.Client(base_url=f"http://127.0.0.1:{live.port}", timeout=30, trust_env=False) as client:
            found = {user: _auc(client, user, taste) for user in taste.wanted}
        changed = set(taste.changed)
        return cls(
            float(np.mean([value for user, value in found.items() if user in changed])),
            float(np.mean([value for user, value in found.items() if user not in changed])),
        )


def _auc(client: httpx.Client, user: str, taste: Taste) -> float:
    """Raises RuntimeError when the ranking is degraded time and again."""
    wanted = set(taste.wanted[user])
    body = {"user_id": user, "item_ids": [*taste.wanted[user], *taste.others[user]], "timeout_ms": 1_000}
    said = ""
    for _ in range(20):
        reply = client.post("/v1/rank", json=body)
        said = f"{reply.status_code} {reply.text:.300}"
        if reply.status_code == 200 and not reply.json()["degraded"]:
            order = [item["id"] for item in reply.json()["items"]]
            return auc(np.array([item in wanted for item in order]), -np.arange(len(order), dtype=float))
        time.sleep(0.1)
    raise RuntimeError(f"/v1/rank of user {user}: {said}")


def send(live: Live, events: Sequence[dict[str, Any]]) -> None:
    """Raises RuntimeError unless each is accepted."""
    with httpx.Client(base_url=f"http://127.0.0.1:{live.port}", timeout=30, trust_env=False) as client:
        for at in range(0, len(events), BATCH):
            reply = client.post("/v1/events", json={"events": events[at : at + BATCH]})
            if reply.status_code != 200 or reply.json()["accepted"] != len(events[at : at + BATCH]):
                raise RuntimeError(f"/v1/events: {reply.status_code} {reply.text:.500}")


def finetuned(live: Live, rows: int) -> tuple[Rolled, list[Phase], list[dict[str, Any]]]:
    """Send the job and follow it to its end: the rollout, the job's own phases, and what it said.

    Raises:
        RuntimeError: it failed, or its release was not promoted.
    """
    options = f"--name taste --since last --promote --epochs {EPOCHS} --most-rows {rows} --json"
    script = f". {shlex.quote(str(Cluster(live.home).folders.shell))} && "
    script += f"ray job submit -- python -m deployments.finetune {options}"
    began_s = time.monotonic()
    job = subprocess.Popen(["sh", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        rolled = Watch(live).until_ended(began_s + LONGEST_S, lambda: job.poll() is None)
    except RuntimeError as error:
        job.kill()
        raise RuntimeError(f"{error}: {(job.communicate()[0] or '')[-2_000:]}") from None
    said = [orjson.loads(line) for line in job.communicate()[0].splitlines() if line.startswith("{")]
    if rolled.view["phase"] != "promoted" or job.returncode != 0:
        raise RuntimeError(f"the release was not promoted: {rolled.view}")
    return rolled, [Phase("fine-tune", began_s, rolled.phases[0].began_s), *rolled.phases], said


def main() -> None:
    quick = is_quick()
    before_s = QUICK_BEFORE_S if quick else BEFORE_S
    with live_service("pool") as live:
        taste = Taste.plant(Dataset.load(live.settings.dataset_folder), QUICK_USERS if quick else USERS)
        load = Load(live.port, live.requests(2_000, seed=3), poisson(RATE, LONGEST_S, seed=11), contains=FULL)
        ranked = {"before the events": Ranked.by(live, taste)}
        with start(load) as running:
            time.sleep(SETTLE_S + before_s)
            middle_s = time.monotonic()
            time.sleep(before_s)
            events_s = time.monotonic()
            send(live, taste.events())
            ranked["old release, events in histories"] = Ranked.by(live, taste)
            rolled, phases, said = finetuned(live, QUICK_ROWS if quick else ROWS)
            after_s = time.monotonic()
            time.sleep(before_s)
            outcomes = running.stop()
        ranked["new release"] = Ranked.by(live, taste)
    stages = [
        Phase("before", middle_s - before_s, middle_s), Phase("before again", middle_s, events_s),
        Phase("events", events_s, phases[0].began_s), *phases, Phase("after", after_s, after_s + before_s),
    ]  # fmt: skip
    report([noticed(outcomes, each) for each in stages if each.ended_s > each.began_s], ranked, said)


def report(stages: list[dict[str, Any]], ranked: dict[str, Ranked], said: list[dict[str, Any]]) -> None:
    print_table(COLUMNS, [[row[name] for name in COLUMNS] for row in stages])
    for line in (each["message"] for each in said if each["event"] == "rollout"):
        print(line)
    print("\nAUC of the liked genre's items that no event names, over the other genre's")
    print_table(
        ("", "changed users", "others"), [[name, each.changed, each.unchanged] for name, each in ranked.items()]
    )
    usual = [row["p99_ms"] for row in stages if row["stage"].startswith("before")]
    gain = ranked["new release"].changed - ranked["old release, events in histories"].changed
    floors = [
        Floor("AUC gained by changed users", gain, LEAST_GAIN),
        Floor("failed requests", sum(row["failed"] for row in stages), 0, "lower"),
        Floor("worst p99 of a stage of the rollout over before", worst_p99_ms(stages) / usual[0], P99_FLOOR, "lower"),
    ]
    figures = {"stages": stages, "auc": {name: vars(each) for name, each in ranked.items()},
               "before_over_before": usual[1] / usual[0]}  # fmt: skip
    print_report("taste", figures, floors)


if __name__ == "__main__":
    main()
