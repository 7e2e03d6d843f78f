"""Where the time of one request goes, from the caller's socket to the model and back."""

from __future__ import annotations

import http.client
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson

from configs.errors import Unavailable
from serving.schemas import RecommendRequest

PATH = "/v1/recommend"
WARM_UP = 10
RECALL_PART = "recall."
STAGES = ("queue", "features", "recall", "coarse", "fine", "post")
ABOUT = {
    "http": "HAProxy, uvicorn, and the sockets between them",
    "validation": "the body, read and checked once",
    "queue": "from the proxy until a lane takes the batch that the request is in",
    "features": "the user's row and history from the store, encoded",
    "recall": "user tower, sources, merge",
    "coarse": "user half once, item halves gathered, some hundred candidates scored, sorted",
    "fine": "the same over the best of them: cross layers, and attention of every candidate over the history",
    "post": "eligibility, exclusions, caps, the slate",
    "reply": "ids, reasons, metadata, cursor, and handing the batch from thread to thread",
    "serialisation": "the reply as JSON",
}
"""What each part is, in the order of a request's life."""


@dataclass(frozen=True)
class Budget:
    """Median milliseconds of a request by part, and of recall by its own parts."""

    total_ms: float
    parts_ms: dict[str, float]
    recall_ms: dict[str, float]
    requests: int

    @property
    def largest(self) -> str:
        return max(self.parts_ms, key=lambda part: self.parts_ms[part])

    def as_dict(self) -> dict[str, Any]:
        return {
            "total_ms": self.total_ms,
            "parts_ms": self.parts_ms,
            "recall_ms": self.recall_ms,
            "largest": self.largest,
            "requests": self.requests,
        }

    def lines(self) -> list[str]:
        rows = [f"{'part':14} {'ms':>7} {'share':>6}"]
        for part, took_ms in self.parts_ms.items():
            rows.append(f"{part:14} {took_ms:7.3f} {took_ms / self.total_ms:6.1%}  {ABOUT[part]}")
            if part == "recall":
                rows += [f"  {name:12} {ms:7.3f} {ms / self.total_ms:6.1%}" for name, ms in self.recall_ms.items()]
        rows.append(f"{'all of it':14} {self.total_ms:7.3f}         median of {self.requests} requests, one at a time")
        rows.append(f"The largest part is {self.largest}: {ABOUT[self.largest]}.")
        return rows


def measure(address: str, user_ids: Sequence[str], requests: int) -> Budget:
    """Ask a running service for slates, one after the other, and take the time apart.

    What the service measures itself comes with its replies; the body is checked and the reply written here once
    more, by the functions the service uses; what is left over is HTTP.

    Raises:
        Unavailable: nothing answers at ``address``, or not with a full answer.
    """
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=10)
    try:
        asked = [_ask(connection, user_ids[n % len(user_ids)]) for n in range(WARM_UP + requests)][WARM_UP:]
    except OSError as error:
        raise Unavailable(f"no service answers at {address} ({type(error).__name__}); run `recpool up`") from error
    finally:
        connection.close()
    parts = {part: statistics.median(each[part] for each in asked) for part in ABOUT}
    inside = [name for name in asked[0] if name.startswith(RECALL_PART)]
    recall = {name.removeprefix(RECALL_PART): statistics.median(each[name] for each in asked) for name in inside}
    return Budget(sum(parts.values()), parts, recall, len(asked))


def _ask(connection: http.client.HTTPConnection, user_id: str) -> dict[str, float]:
    """Milliseconds of one request by part."""
    body = orjson.dumps({"user_id": user_id, "debug": True, "dry_run": True})
    started = time.perf_counter()
    connection.request("POST", PATH, body, {"content-type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    total_ms = _since_ms(started)
    if response.status != 200:
        raise Unavailable(f"the service answers {response.status}: {answer[:500].decode(errors='replace')}")
    reply = orjson.loads(answer)
    if reply["degraded"]:
        raise Unavailable(
            f"a degraded answer says nothing of a whole one: {reply['degraded']}; try again when it is idle"
        )
    took = {name: float(ms) for name, ms in reply["debug"]["timings_ms"].items()}
    started = time.perf_counter()
    RecommendRequest.model_validate_json(body)
    took["validation"] = _since_ms(started)
    started = time.perf_counter()
    orjson.dumps(reply)
    took["serialisation"] = _since_ms(started)
    took["reply"] = max(0.0, reply["took_ms"] - sum(took[stage] for stage in STAGES))
    took["http"] = max(0.0, total_ms - sum(took[part] for part in ABOUT if part != "http"))
    return took


def _since_ms(started_s: float) -> float:
    return (time.perf_counter() - started_s) * 1000
