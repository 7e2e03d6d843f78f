"""From a slate to the reply that HTTP callers get, and to the impression that is logged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from features.catalogue import Catalogue
from features.live_catalogue import LiveCatalogue
from features.streaming_catalogue import CatalogueSnapshot
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
ITEMS_READY = 20_000
"""Items of a release about which everything a reply says stays ready."""

_Shown = tuple[str, int, dict[str, Any]]
"""An item's external id, its cursor hash and its metadata."""
_ready: WeakKeyDictionary[Catalogue | CatalogueSnapshot, dict[int, _Shown]] = WeakKeyDictionary()


def build_reply(
    reply_id: str, row: Row, slate: Slate, release: Release, started_s: float, now_s: float, debug: bool
) -> dict[str, Any]:
    """The reply as plain JSON values; `serving.schemas.Reply` documents it. Times in seconds."""
    shown = _shown(slate.items, release.catalogue)
    own = len(row.items) > 0
    found = [_provenance(mask, own) for mask in slate.sources.tolist()]
    scores = list(map(_finite, slate.scores.tolist()))
    items: list[dict[str, Any]] = [
        {"id": i, "score": score, "source": source, "reasons": reasons, "metadata": about}
        for (i, _, about), score, (source, reasons) in zip(shown, scores, found, strict=True)
    ]
    if own:
        items += [{"id": i, "score": None, "source": FROM_REQUEST, "reasons": [], "metadata": {}} for i in row.unknown]
    return {
        "recommendation_id": reply_id,
        "items": items,
        "returned": len(items),
        "next_cursor": _next_cursor(row, shown) if slate.more else None,
        "unknown_item_ids": list(row.unknown),
        "degraded": [{"stage": stage, "reason": reason} for stage, reason in slate.trace.degraded],
        "versions": release.versions,
        "took_ms": round((now_s - started_s) * 1000, 3),
        "debug": _debug(slate, [i for i, _, _ in shown]) if debug else None,
    }


def impression(
    reply: dict[str, Any], row: Row, scene: str | None, time_s: float, told: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """What the event log keeps of a reply: who saw which items in which order, from which release.

    Args:
        told: the part of the traffic that the request belonged to; see `serving.experiments.division.Part`.
    """
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
            "took_ms": reply["took_ms"],
            "part": dict(told),
        },
    }


@cache
def _provenance(mask: int, own: bool) -> tuple[str, list[str]]:
    """The first source in a bitmask, and what all of them say."""
    names = source_names(mask) or [FROM_REQUEST if own else FALLBACK]
    return names[0], [REASONS[name] for name in names]


def _shown(items: np.ndarray, catalogue: Catalogue | LiveCatalogue) -> list[_Shown]:
    """What a reply says of items [n] int32, in their order; not to be changed, for later replies say it too."""
    now = catalogue.snapshot()
    ready = _ready.setdefault(now, {})
    indices: list[int] = items.tolist()
    missing = [index for index in indices if index not in ready]
    if missing:
        if len(ready) + len(missing) > ITEMS_READY:
            ready.clear()
            missing = indices
        ids = now.ids(missing)
        found = zip(ids, item_hashes(ids).tolist(), now.metadata(missing), strict=True)
        ready.update(zip(missing, found, strict=True))
    return [ready[index] for index in indices]


def _next_cursor(row: Row, shown: Sequence[_Shown]) -> str | None:
    hashes = np.array([item_hash for _, item_hash, _ in shown], np.uint32)
    given = np.concatenate([row.shown, hashes]) if len(row.shown) else hashes
    return encode_cursor(given) if len(given) < MAX_ITEMS else None


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
