"""Events: how many a second are acknowledged durably, and whether each of those is kept once whatever is killed.

Through a running service callers send batches at random times at the floor's rate, then single events as fast as
they are answered in time. Then replicas of the gateway, which write the log, get SIGKILL at random points under
load; a writer in a process of its own does too, many more times; and so does a Redis server that holds both log
and histories, started again each time. An event counts as lost when it was acknowledged and is not exactly once
in the log, or not exactly once in its user's history.
"""

from __future__ import annotations

import itertools
import random
import tempfile
import time
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.event_writers import killed_server, killed_writers, missing, settings_in, user_of
from benchmarks.live import Live, live_service
from benchmarks.load import Load, Outcomes, best_rate, poisson, post, start
from benchmarks.redis_server import RedisServer
from benchmarks.report import Floor, is_quick, print_report, print_table

FLOOR_PER_S = 2_000
BATCH = 20
RATE_S, QUICK_RATE_S = 30.0, 6.0
PROBE_S, QUICK_PROBE_S = 5.0, 2.0
KILLS, QUICK_KILLS = 100, 5
"""Of each kind."""
KILL_EVERY_S = (2.0, 5.0)
KILL_BATCH, KILL_RATE = 5, 40.0
"""Events of a call, and calls a second, while gateways are killed."""
SETTLE_S = 6.0


@dataclass
class Rate:
    """One load: offered and acknowledged events a second, and what callers waited for that."""

    batch: int
    offered: float
    acknowledged: float
    p50_ms: float
    p99_ms: float
    worst_ms: float
    refused_calls: int


@dataclass
class Kills:
    """One kind of victim: `lost` were acknowledged and are not exactly once in the log, `unseen` not in a history."""

    victim: str
    kills: int
    acknowledged: int
    lost: int
    unseen: int


def calls(name: str, count: int, batch: int) -> list[bytes]:
    """Posts of events that all differ."""
    ids = ([f"{name}-{call}-{place}" for place in range(batch)] for call in range(count))
    return [post("/v1/events", orjson.dumps({"events": [_event(each) for each in some]})) for some in ids]


def _event(event_id: str) -> dict[str, Any]:
    return {"event_id": event_id, "kind": "click", "user_id": user_of(event_id), "item_id": event_id}


def acknowledged(outcomes: Outcomes) -> list[str]:
    """Ids of the events that some answer said are kept."""
    assert outcomes.bodies is not None
    replies = [orjson.loads(body) for body in outcomes.bodies if body and body.startswith(b'{"accepted"')]
    return [each["event_id"] for reply in replies for each in reply["results"] if each["status"] != "refused"]


def at_rate(live: Live, batch: int, per_s: float, seconds: float) -> Rate:
    """Batches at random times."""
    times = poisson(per_s / batch, seconds, seed=3)
    load = Load(live.port, calls(f"rate{batch}", len(times), batch), times, keep_bodies=True)
    with start(load) as running:
        outcomes = running.outcomes()
    summary = outcomes.summary()
    ended_s = float((outcomes.scheduled_s + outcomes.latency_s).max() - outcomes.scheduled_s.min())
    kept = len(acknowledged(outcomes))
    figures = summary.p50_ms, summary.p99_ms, summary.max_ms
    return Rate(batch, per_s, kept / max(seconds, ended_s), *figures, int((outcomes.status != 200).sum()))


def best_singles(live: Live) -> float:
    """Events a second, each in a call of its own, that are answered in time."""
    seconds = QUICK_PROBE_S if is_quick() else PROBE_S
    numbers = itertools.count()

    def measure(rate: float):
        times = poisson(rate, seconds, seed=5)
        with start(Load(live.port, calls(f"one{next(numbers)}", len(times), 1), times, timeout_s=3)) as running:
            return running.outcomes().summary()

    return best_rate(measure, begin=200, resolution=0.17, repeats=1).rate


def kill_gateways(live: Live, kills: int) -> Kills:
    """SIGKILL of a gateway at a random moment, while another runs, under load."""
    chosen, done = random.Random(13), 0
    pauses = [chosen.uniform(*KILL_EVERY_S) for _ in range(kills)]
    times = poisson(KILL_RATE, sum(pauses) * 3 + SETTLE_S, seed=9)
    load = Load(live.port, calls("kill", len(times), KILL_BATCH), times, retry=True, keep_bodies=True)
    with start(load) as running:
        for pause_s in pauses:
            time.sleep(pause_s)
            gateways = live.running().get("gateway", [])
            while len(gateways) < 2 and time.monotonic() < running.started_s + times[-1]:
                time.sleep(0.5)
                gateways = live.running().get("gateway", [])
            if len(gateways) > 1:
                chosen.choice(gateways).kill()
                done += 1
        outcomes = running.stop()
    kept = acknowledged(outcomes)
    time.sleep(SETTLE_S)  # a replica that took a dead one's place brings what that left behind
    return Kills("gateway", done, len(kept), *map(len, missing(live.settings, kept)))


def kill_writers(folder: Path, kills: int) -> list[Kills]:
    """The embedded log's writer, and a Redis server that holds everything."""
    own, server = settings_in(folder / "own"), RedisServer(folder, durable=True)
    kept = killed_writers(own, kills, seed=17)
    found = [Kills("writer of the embedded log", kills, len(kept), *map(len, missing(own, kept)))]
    server.start()
    try:
        there = {"redis_url": server.url}
        settings = settings_in(folder / "redis", events={"log": "redis", **there}, store=_store(there))
        kept = killed_server(settings, server.kill, server.start, kills)
        found.append(Kills("Redis server", kills, len(kept), *map(len, missing(settings, kept))))
    finally:
        server.kill()
    return found


def _store(there: dict[str, str]) -> dict[str, Any]:
    return {"kind": "redis", "history_limit": 65_536, "timeout_ms": 1_000, **there}


def main() -> None:
    kills, seconds = (QUICK_KILLS, QUICK_RATE_S) if is_quick() else (KILLS, RATE_S)
    with tempfile.TemporaryDirectory(prefix="rp-") as folder:
        found = kill_writers(Path(folder), kills)
    with live_service("default", RECPOOL_STORE__HISTORY_LIMIT="65536") as live:
        print(f"the service is up; {FLOOR_PER_S} events/s for {seconds:g} s", flush=True)
        at_rate(live, BATCH, 100, 1.0)  # the first calls of each replica
        rates = [at_rate(live, BATCH, FLOOR_PER_S * 1.05, seconds)]
        singles = best_singles(live)
        found.insert(0, kill_gateways(live, kills))
    _print(rates, singles, found)


def _print(rates: list[Rate], singles: float, found: list[Kills]) -> None:
    print_table(
        ("events a call", "offered/s", "acknowledged/s", "p50 ms", "p99 ms", "worst ms", "refused calls"),
        [astuple(rate) for rate in rates],
    )
    print(f"one event a call: {singles:.0f}/s")
    print_table(("killed", "times", "acknowledged", "lost", "not in a history"), [astuple(each) for each in found])
    floors = [Floor("events acknowledged a second", rates[0].acknowledged, FLOOR_PER_S)]
    for each in found:
        floors.append(Floor(f"{each.victim} killed: events lost", each.lost, 0, "lower"))
        floors.append(Floor(f"{each.victim} killed: events missing in histories", each.unseen, 0, "lower"))
    figures = {
        "rates": [asdict(rate) for rate in rates],
        "ack_p99_ms": float(np.max([rate.p99_ms for rate in rates])),
        "single_events_per_s": singles,
        "kills": [asdict(each) for each in found],
    }
    print_report("events", figures, floors)


if __name__ == "__main__":
    main()
