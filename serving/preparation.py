"""From a validated request to what the cascade works on; everything wrong with one request shows here.

Each request is prepared by itself, so that a bad one fails alone in a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from configs.errors import InvalidRequest
from features.encoding import FIRST_KNOWN, Encoder
from serving.cursor import decode_cursor
from serving.priority import Priority
from serving.quality import FULL, Limits
from serving.release import Release
from serving.schemas import RankRequest, RecommendRequest, SimilarRequest
from serving.types import Trace

_NONE, _NONE_SHOWN = np.zeros(0, np.int32), np.zeros(0, np.uint32)


@dataclass
class Row:
    """One request on its way through the cascade.

    Attributes:
        k: items wanted.
        deadline_s: on the cascade's monotonic clock.
        priority: who goes first when there are more than one batch holds.
        limits: how much quality the row gets under overload.
        features: raw user and context fields that take precedence over stored ones.
        seeds, excluded: [n] int32 item indices; ``shown`` are those of earlier pages.
        items: [n] int32, the caller's own items (rank only).
        unknown: ids that the release does not hold.
        profile: the fields as rank saw them, stored ones included; set when the row is hydrated.
    """

    deadline_s: float
    k: int = 0
    user_id: str | None = None
    features: Mapping[str, Any] = field(default_factory=dict)
    seeds: np.ndarray = field(default_factory=lambda: _NONE)
    excluded: np.ndarray = field(default_factory=lambda: _NONE)
    shown: np.ndarray = field(default_factory=lambda: _NONE_SHOWN)
    items: np.ndarray = field(default_factory=lambda: _NONE)
    unknown: tuple[str, ...] = ()
    filter: str | None = None
    exclude_seen: bool = True
    debug: bool = False
    profile: Mapping[str, Any] = field(default_factory=dict)
    trace: Trace = field(default_factory=Trace)
    priority: Priority = Priority.NORMAL
    limits: Limits = FULL


def prepare_recommend(request: RecommendRequest, release: Release, deadline_s: float, default_k: int) -> Row:
    """Raises InvalidRequest naming the field: unknown or mistyped features, a bad cursor or filter."""
    shown = decode_cursor(request.cursor) if request.cursor else _NONE_SHOWN
    _check_filter(request.filter, release)
    seeds, unknown = _known(request.seed_item_ids, release)
    excluded, _ = _known(request.exclude_item_ids, release)
    return Row(
        deadline_s,
        k=request.k or default_k,
        user_id=request.user_id,
        features=_features(request.user_features, request.context, release.encoder),
        seeds=seeds,
        excluded=_joined(excluded, seeds, release.items_with_hash(shown)),
        shown=shown,
        unknown=unknown,
        filter=request.filter,
        exclude_seen=request.exclude_seen,
        debug=request.debug,
    )


def prepare_rank(request: RankRequest, release: Release, deadline_s: float) -> Row:
    """Raises InvalidRequest for unknown or mistyped features. Repeated items are ranked once."""
    items, unknown = _known(request.item_ids, release)
    features = _features(request.user_features, request.context, release.encoder)
    return Row(
        deadline_s, k=len(items), user_id=request.user_id, features=features, items=items, unknown=unknown,
        exclude_seen=False,
    )  # fmt: skip


def prepare_similar(request: SimilarRequest, release: Release, deadline_s: float, default_k: int) -> Row:
    """Raises InvalidRequest for a bad filter."""
    _check_filter(request.filter, release)
    seeds, unknown = _known(request.item_ids, release)
    excluded, _ = _known(request.exclude_item_ids, release)
    return Row(
        deadline_s,
        k=request.k or default_k,
        seeds=seeds,
        excluded=_joined(excluded, seeds),
        unknown=unknown,
        filter=request.filter,
    )


def _check_filter(expression: str | None, release: Release) -> None:
    if expression:
        release.catalogue.mask(expression)


def _known(ids: Sequence[str], release: Release) -> tuple[np.ndarray, tuple[str, ...]]:
    """Item indices of the known ids, each once in the order given, and the unknown ids."""
    if not ids:
        return _NONE, ()
    distinct = list(dict.fromkeys(ids))
    found = list(map(release.catalogue.index, distinct))
    unknown = tuple([i for i, index in zip(distinct, found, strict=True) if index < FIRST_KNOWN])
    return np.array([index for index in found if index >= FIRST_KNOWN], np.int32), unknown


def _joined(*parts: np.ndarray) -> np.ndarray:
    return np.concatenate(parts) if any(map(len, parts)) else _NONE


def _features(user: Mapping[str, Any], context: Mapping[str, Any], encoder: Encoder) -> dict[str, Any]:
    """Both mappings in one, checked against the schema."""
    for where, given, entity in (("user_features", user, "user"), ("context", context, "context")):
        for name, value in given.items():
            kinds = encoder.kinds[entity]
            if name not in kinds:
                raise InvalidRequest(f"{where}.{name}: no such field; known fields: {sorted(kinds)}", f"{where}.{name}")
            _check_value(f"{where}.{name}", kinds[name], value)
    return {**user, **context}


def _check_value(name: str, kind: str, value: Any) -> None:
    if kind == "numeric" and (isinstance(value, str | list | bool)):
        raise InvalidRequest(f"{name}: {value!r:.80} is not a number; send a number, or null if unknown", name)
    if kind == "categorical" and isinstance(value, list):
        raise InvalidRequest(f"{name}: holds one value, got a list; send a single value", name)
    if kind == "multi" and value is not None and not isinstance(value, list | str):
        raise InvalidRequest(f"{name}: holds a list of strings, got {value!r:.80}; send a list", name)
