"""The whole funnel by hand, for one release: what a good engineer would put behind a web framework.

It reads a release's files and the embedded store's rows and imports nothing of Recpool, so that it runs
wherever numpy, ONNX Runtime, FAISS, LMDB and orjson are installed. It is as lean as the release allows: every
item can be shown, profiles are categorical, the catalogue is small enough for dense scores by item.
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false
# The types of faiss and of ONNX Runtime's outputs say less than is so.

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import faiss
import lmdb
import numpy as np
import onnxruntime as ort
import orjson

CONFIG = "PEERS_FUNNEL"
"""Environment variable with the path of the JSON file that `Config` is read from."""
UNKNOWN, FIRST_KNOWN = 1, 2
EVIDENCE = {"ann": 1.0, "item_to_item": 1.0, "popular": 0.02, "fresh": 0.01}
"""How much each source's standardised scores count when the sources are united."""
NEGATIVE, POSITIVE = 1, 2
ROW_HEAD = struct.Struct("<4sI8xQ")


@dataclass(frozen=True)
class Config:
    """Where the release and the store are, and how many candidates each stage takes."""

    release: str
    store: str
    quotas: Mapping[str, int]
    weights: Mapping[str, float]
    candidates: int
    coarse_keep: int
    k: int
    max_batch: int

    @classmethod
    def load(cls, path: str | Path | None = None) -> Config:
        return cls(**orjson.loads(Path(path or os.environ[CONFIG]).read_bytes()))


@dataclass(frozen=True)
class Users:
    """Model inputs of B users, and per user the indices [n] of the items met, most recent first."""

    cat: np.ndarray
    history: np.ndarray
    signal: np.ndarray
    seen: list[np.ndarray] = field(repr=False)


@dataclass(frozen=True)
class Candidates:
    """items [B, C] int64 padded with 0; evidence [B, C] float32, -inf at padding."""

    items: np.ndarray
    evidence: np.ndarray


class Funnel:
    """User ids in, item ids and scores out. One instance a process; calls from one thread at a time are fastest."""

    def __init__(self, config: Config):
        faiss.omp_set_num_threads(1)
        self.config = config
        self.features = UserFeatures(Path(config.release), Path(config.store))
        self.recall = Recall(Path(config.release), config)
        self.coarse = Ranker(Path(config.release), "coarse", config)
        self.fine = Ranker(Path(config.release), "fine", config)

    @classmethod
    def load(cls) -> Funnel:
        """The funnel that the environment describes, warmed up."""
        funnel = cls(Config.load())
        for rows in (1, funnel.config.max_batch):
            funnel.recommend([""] * rows)
        return funnel

    def recommend(self, user_ids: Sequence[str]) -> tuple[list[list[str]], list[list[float]]]:
        """The k best item ids of each user and their scores, best first."""
        users = self.features.read(user_ids)
        found = self.coarse.best(users, self.recall.find(users), self.config.coarse_keep)
        return self.named(self.fine.best(users, found, self.config.k, in_order=True))

    def named(self, best: Ranked) -> tuple[list[list[str]], list[list[float]]]:
        return self.features.item_names[best.items].tolist(), best.scores.tolist()


class UserFeatures:
    """Rows of the store as model inputs."""

    def __init__(self, release: Path, store: Path):
        encoder = orjson.loads((release / "encoder.json").read_bytes())
        fields = [f["name"] for f in encoder["schema"]["fields"] if f["entity"] != "item"]
        assert all(f["kind"] == "categorical" for f in encoder["schema"]["fields"] if f["entity"] != "item")
        self._vocabularies = [(name, _index(encoder["vocabularies"][f"user.{name}"])) for name in fields]
        self._users = _index(encoder["user_ids"])
        hashes = np.array([_hashed(item) for item in encoder["item_ids"]], np.uint64)
        self._by_hash = np.argsort(hashes)
        self._hashes = hashes[self._by_hash]
        self._length = encoder["schema"]["history"]["length"]
        self._positive_at = encoder["schema"]["history"]["positive_at"]
        self._environment = lmdb.open(str(store), readonly=True, lock=True, max_readers=1024, map_size=64 << 30)
        self.item_names = np.array(["", "", *encoder["item_ids"]], object)

    def read(self, user_ids: Sequence[str]) -> Users:
        """The users as the store has them now; one that is not there has no history and an unknown profile."""
        cat = np.empty((len(user_ids), 1 + len(self._vocabularies)), np.int32)
        history = np.zeros((len(user_ids), self._length), np.int32)
        signal = np.zeros((len(user_ids), self._length), np.int8)
        seen = []
        with self._environment.begin(buffers=True) as transaction:
            for row, user_id in enumerate(user_ids):
                raw = transaction.get(b"i" + user_id.encode())
                if raw is None:
                    cat[row] = self._profile(user_id, {})
                    seen.append(np.zeros(0, np.int64))
                else:
                    features, met, values = self._parsed(raw)
                    cat[row] = self._profile(user_id, features)
                    seen.append(self._met(met, values, history[row], signal[row]))
        return Users(cat, history, signal, seen)

    def _parsed(self, raw: Any) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
        """A row's profile, item hashes and values; the layout is that of Recpool's embedded store."""
        magic, profile, events = ROW_HEAD.unpack_from(raw)
        assert magic == b"row3"
        start = ROW_HEAD.size + 24 * events
        hashes = np.frombuffer(raw, np.uint64, events, ROW_HEAD.size)
        values = np.frombuffer(raw, np.float64, events, ROW_HEAD.size + 8 * events)
        return orjson.loads(raw[start : start + profile])["features"], hashes, values

    def _profile(self, user_id: str, features: dict[str, Any]) -> list[int]:
        known = [vocabulary.get(features.get(name), UNKNOWN) for name, vocabulary in self._vocabularies]
        return [self._users.get(user_id, UNKNOWN), *known]

    def _met(self, hashes: np.ndarray, values: np.ndarray, history: np.ndarray, signal: np.ndarray) -> np.ndarray:
        """Fill one user's history and signal; returns everything the user met."""
        places = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        met = np.where(self._hashes[places] == hashes, self._by_hash[places] + FIRST_KNOWN, UNKNOWN)
        known = met[: self._length]
        marks = np.where(values[: self._length] < self._positive_at, NEGATIVE, POSITIVE)
        history[: len(known)], signal[: len(known)] = known, marks
        return met


class Recall:
    """Four sources united: nearest vectors, neighbours of the history, popular and fresh items."""

    def __init__(self, release: Path, config: Config):
        folder = release / "recall"
        self._tower = session(release, "user_tower")
        self._index = faiss.read_index(str(folder / "index.faiss"))
        self._lists = {name: dict(np.load(folder / f"{name}.npz")) for name in ("popular", "fresh")}
        neighbours = np.load(folder / "neighbours.npz")
        # As `np.bincount` wants them, so that it copies nothing.
        self._neighbours = neighbours["items"].astype(np.int64)
        self._affinities = neighbours["weights"].astype(np.float64)
        self._rows, self._quotas, self._limit = len(self._neighbours), config.quotas, config.candidates

    def find(self, users: Users) -> Candidates:
        """The candidates of each user, in no order."""
        inputs = {"user_cat": users.cat, "history": users.history, "signal": users.signal}
        vectors = self._tower.run(None, inputs)[0]
        deep = self._quotas["ann"] + max(len(met) for met in users.seen)
        scores, ids = self._index.search(vectors, min(deep, self._index.ntotal))
        rows = [self._one(users, row, ids[row], scores[row]) for row in range(len(vectors))]
        if len(rows) == 1:
            return Candidates(rows[0][0][None], rows[0][1][None])
        return _padded(rows)

    def _one(self, users: Users, row: int, ids: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Items and evidence of one user."""
        met = users.seen[row]
        usable = np.ones(self._rows, bool)
        usable[met] = False
        usable[:FIRST_KNOWN] = False
        total, found = np.zeros(self._rows), np.zeros(self._rows, bool)
        n = self._quotas["ann"]
        kept = np.flatnonzero(usable[ids])[:n]
        parts = [("ann", ids[kept], scores[kept])]
        parts.append(("item_to_item", *self._reached(users.history[row], len(met), usable)))
        parts += [(name, *self._listed(name, users.cat[row], len(met), usable)) for name in self._lists]
        for name, items, values in parts:
            total[items] += EVIDENCE[name] * _standardised(values)
            found[items] = True
        items = np.flatnonzero(found)
        evidence = total[items]
        if len(items) > self._limit:
            best = np.argpartition(-evidence, self._limit)[: self._limit]
            items, evidence = items[best], evidence[best]
        return items, evidence

    def _reached(self, history: np.ndarray, met: int, usable: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The best neighbours of the history by summed affinity."""
        events = history[:met]
        neighbours, affinities = self._neighbours.take(events, 0), self._affinities.take(events, 0)
        sums = np.bincount(neighbours.ravel(), affinities.ravel(), self._rows)
        items = np.flatnonzero((sums != 0) & usable)
        n = self._quotas["item_to_item"]
        if len(items) > n:
            items = items[np.argpartition(-sums[items], n)[:n]]
        return items, sums[items]

    def _listed(self, name: str, cat: np.ndarray, met: int, usable: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first usable items of the user's list."""
        lists, n = self._lists[name], self._quotas[name]
        row = cat[lists["column"]] if lists["column"] else 1
        items = lists["items"][row, : n + met]
        places = np.flatnonzero(usable[items])[:n]
        return items[places], lists["scores"][row, places]


@dataclass(frozen=True)
class Ranked:
    """items [B, n] and scores [B, n]."""

    items: np.ndarray
    scores: np.ndarray


class Ranker:
    """One ranker: the user half once a user, the cross half over all of a user's candidates."""

    def __init__(self, release: Path, name: str, config: Config):
        header = orjson.loads((release / "ranking" / f"{name}.json").read_bytes())
        self._user, self._cross = session(release, f"{name}_user"), session(release, f"{name}_cross")
        self._parts = [node.name for node in self._user.get_outputs()]
        self._states = np.load(release / "ranking" / f"{name}_items.npy")
        self._length = header["spec"]["history"]
        self._weights = np.array([config.weights.get(o, 0.0) for o in header["config"]["objectives"]], np.float32)
        self._evidence = np.float32(config.weights.get("recall", 0.0))

    def best(self, users: Users, found: Candidates, n: int, in_order: bool = False) -> Any:
        """The n best candidates: `Candidates` in no order, or `Ranked`, best first."""
        inputs = {
            "user_cat": users.cat,
            "history": users.history[:, : self._length],
            "signal": users.signal[:, : self._length],
        }
        given = dict(zip(self._parts, self._user.run(None, inputs), strict=True))
        given["item_state"] = self._states.take(found.items, 0)
        scores = self._cross.run(None, given)[0] @ self._weights + self._evidence * found.evidence
        if in_order:
            order = np.argsort(-scores, axis=1)[:, :n]
            return Ranked(_at(found.items, order), _at(scores, order))
        if scores.shape[1] <= n:
            return found
        order = np.argpartition(-scores, n, axis=1)[:, :n]
        return Candidates(_at(found.items, order), _at(found.evidence, order))


def session(release: Path, name: str) -> ort.InferenceSession:
    """A model of the release on one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    path = release / "models" / name / "1" / "model.onnx"
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _index(values: Sequence[str]) -> dict[str, int]:
    return {value: row for row, value in enumerate(values, FIRST_KNOWN)}


def _hashed(item: str) -> int:
    return int.from_bytes(blake2b(item.encode(), digest_size=8).digest(), "little") or 1


def _standardised(values: np.ndarray) -> np.ndarray:
    """Values [n] above the least of them, in standard deviations."""
    if not len(values):
        return values
    values = values.astype(np.float64)
    apart = values - values.sum() / len(values)
    spread = (apart.dot(apart) / len(values)) ** 0.5
    return (values - values.min()) / (spread or 1.0)


def _padded(rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> Candidates:
    width = max(len(items) for items, _ in rows)
    items = np.zeros((len(rows), width), np.int64)
    evidence = np.full((len(rows), width), -np.inf, np.float32)
    for row, (mine, values) in enumerate(rows):
        items[row, : len(mine)], evidence[row, : len(mine)] = mine, values
    return Candidates(items, evidence)


def _at(values: np.ndarray, order: np.ndarray) -> np.ndarray:
    if len(values) == 1:
        return values[0][order[0]][None]
    return np.take_along_axis(values, order, 1)
