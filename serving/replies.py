"""From a slate to the reply that HTTP callers get, and to the impression that is logged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from recall.merge import source_names
from serving.cursor import MAX_ITEMS, encode_cursor, item_hashes
from serving.preparation import Row
from serving.release import Release
from serving.types import Slate

FROM_REQUEST = "request"
FALLBACK = "fallback"
REASONS = {
    "ann": "matches your taste",
    "item_to_item": "goes with what you chose",
    "popular": "popular with people like you",
    "fresh": "new here",
    FROM_REQUEST: "you asked about it",
    FALLBACK: "popular with everyone",
}


def build_reply(
    reply_id: str, row: Row, slate: Slate, release: Release, started_s: float, now_s: float, debug: bool
) -> dict[str, Any]:
    """The reply as plain JSON values; `serving.schemas.Reply` documents it. Times in seconds."""
    ids = release.catalogue.ids(slate.items)
    own = len(row.items) > 0
    metadata = release.catalogue.metadata(slate.items)
    items = [
        {"id": i, "score": _finite(score), **_provenance(mask, own), "metadata": about}
        for i, score, mask, about in zip(ids, slate.scores.tolist(), slate.sources.tolist(), metadata, strict=True)
    ]
    if own:
        items += [{"id": i, "score": None, "source": FROM_REQUEST, "reasons": [], "metadata": {}} for i in row.unknown]
    return {
        "recommendation_id": reply_id,
        "items": items,
        "returned": len(items),
        "next_cursor": _next_cursor(row, slate, ids),
        "unknown_item_ids": list(row.unknown),
        "degraded": [{"stage": stage, "reason": reason} for stage, reason in slate.trace.degraded],
        "versions": release.versions,
        "took_ms": round((now_s - started_s) * 1000, 3),
        "debug": _debug(slate, ids) if debug else None,
    }


def impression(reply: dict[str, Any], row: Row, scene: str | None, time_s: float) -> dict[str, Any]:
    """What the event log keeps of a reply: who saw which items in which order, from which release."""
    return {
        "event_id": reply["recommendation_id"],
        "kind": "impression",
        "time_s": time_s,
        "user_id": row.user_id,
        "payload": {
            "scene": scene,
            "items": [item["id"] for item in reply["items"]],
            "scores": [item["score"] for item in reply["items"]],
            "versions": reply["versions"],
            "degraded": reply["degraded"],
            "features": dict(row.profile),
        },
    }


@cache
def _provenance(mask: int, own: bool) -> Mapping[str, Any]:
    names = source_names(mask) or [FROM_REQUEST if own else FALLBACK]
    return {"source": names[0], "reasons": [REASONS[name] for name in names]}


def _next_cursor(row: Row, slate: Slate, ids: Sequence[str]) -> str | None:
    if not slate.more:
        return None
    hashes = item_hashes(ids)
    shown = np.concatenate([row.shown, hashes]) if len(row.shown) else hashes
    return encode_cursor(shown) if len(shown) < MAX_ITEMS else None


def _debug(slate: Slate, ids: Sequence[str]) -> dict[str, Any]:
    objectives = {}
    if slate.objectives is not None:
        objectives = {
            i: dict(zip(slate.names, map(_finite, values), strict=True))
            for i, values in zip(ids, slate.objectives.tolist(), strict=True)
        }
    trace = slate.trace
    return {
        "timings_ms": trace.timings_ms, "counts": trace.counts, "removed": trace.removed, "objectives": objectives
    }  # fmt: skip


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
