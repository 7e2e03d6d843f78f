"""Item vectors in FAISS: nearest by inner product, under Recpool's own item indices.

Three guarantees hold for every search: ids are real item indices (FAISS's -1 becomes padding 0), a
row gets as many items as exist (the probe widens when the visited lists hold too few), and a query
with a NaN or infinity fails alone. The float vectors are kept beside the index, memory-mapped, for
exact search among a few eligible items and for refinement.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOptionalMemberAccess=false, reportCallIssue=false
# faiss rewrites its SWIG classes at import, where a type checker cannot see them.

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import faiss
import numpy as np
import orjson

from configs.errors import ArtifactError
from features.encoding import FIRST_KNOWN
from features.row_table import RowTable
from recall.index_spec import IndexSpec
from recall.kernels import best_keys, keys_of, read_keys

INDEX_FILE = "index.faiss"
SPEC_FILE = "index.json"
VECTORS_FILE = "item_vectors.npy"
TRAIN_POINTS_PER_LIST = 64
"""k-means points per list, towards the low end of the 39 to 256 that FAISS asks for, to bound training time."""

ADDED_AT_ONCE = 65_536

TRAIN_ROUNDS = 10
"""k-means rounds; fewer than FAISS's 25, to bound training time (the effect on containment is not measured)."""


@dataclass(frozen=True)
class Neighbours:
    """items [B, k] int32 best first and padded with 0; scores [B, k] float32, -inf at padding; failed [B] bool.

    A failed row had a query vector that is not finite; it holds padding only, so that another
    source can answer it.
    """

    items: np.ndarray
    scores: np.ndarray
    failed: np.ndarray


class AnnIndex:
    """A FAISS index over item vectors [I + 2, D] float32, whose first two rows are never indexed.

    Build with `AnnIndex.build`, read with `AnnIndex.load`. It never changes, so any number of threads search it at
    once; `recall.streaming` has one whose items change.
    """

    def __init__(self, index: faiss.Index, vectors: np.ndarray | RowTable, spec: IndexSpec):
        self.spec = spec
        self.vectors = vectors
        self._index = index
        self._ivf = None if isinstance(index, faiss.IndexIDMap2) else faiss.extract_index_ivf(index)

    @classmethod
    def build(cls, vectors: np.ndarray, spec: IndexSpec | None = None, seed: int = 0) -> AnnIndex:
        """Index rows 2 and up of vectors [I + 2, D] float32.

        Raises:
            ArtifactError: a vector is not finite, the factory is unknown or needs more items to train.
        """
        vectors = np.ascontiguousarray(vectors, np.float32)
        _check_finite(vectors)
        known = vectors[FIRST_KNOWN:]
        spec = spec or IndexSpec.choose(len(known), vectors.shape[1])
        index = _train(known, spec, seed)
        built = cls(index, vectors, spec)
        if len(known):
            index.add_with_ids(known, np.arange(FIRST_KNOWN, len(vectors), dtype=np.int64))  # type: ignore[call-arg]
        return built

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def dim(self) -> int:
        return int(self._index.d)

    @property
    def size_bytes(self) -> int:
        """Bytes of the index itself: codes, ids and centroids, without the float vectors."""
        return int(faiss.serialize_index(self._index).nbytes)

    def search(
        self, queries: np.ndarray, k: int, *, nprobe: int | None = None, eligible: np.ndarray | None = None
    ) -> Neighbours:
        """The k best items by inner product with each query.

        Args:
            queries: [B, D] float32; a row that is not finite is marked failed.
            nprobe: lists to visit first; the spec's when absent.
            eligible: [I + 2] bool, the items that may be returned; all when absent.
        """
        queries = self._as_queries(queries)
        failed = ~np.isfinite(queries).all(1)
        out = _empty(len(queries), k, failed)
        available = len(self) if eligible is None else int(eligible[FIRST_KNOWN:].sum())
        fetch = min(max(k, int(k * self.spec.refine)), available)
        rows = np.flatnonzero(~failed)
        probe = nprobe or self.spec.nprobe
        while len(rows) and fetch:
            items, scores = self._probe(queries[rows], fetch, probe, eligible)
            short = (items > 0).sum(1) < min(k, available)
            if self.spec.refine:
                items, scores = self._rescore(queries[rows], items)
            width = min(k, fetch)
            out.items[rows, :width], out.scores[rows, :width] = items[:, :width], scores[:, :width]
            if self._ivf is None or probe >= self._ivf.nlist:
                break
            rows, probe = rows[short], min(probe * 4, self._ivf.nlist)
        return out

    def search_among(self, queries: np.ndarray, ids: np.ndarray, k: int) -> Neighbours:
        """Exact search among item ids [E] int32, for filters that keep only a few items; result as `search`."""
        queries = self._as_queries(queries)
        failed = ~np.isfinite(queries).all(1)
        out = _empty(len(queries), k, failed)
        ids = np.unique(ids[ids >= FIRST_KNOWN]).astype(np.int32)
        width, rows = min(k, len(ids)), np.flatnonzero(~failed)
        if width and len(rows):
            items = np.broadcast_to(ids, (len(rows), len(ids)))
            scores = queries[rows] @ self.vectors[ids].T
            out.items[rows, :width], out.scores[rows, :width] = best_first(items, scores, width)
        return out

    def over(self, vectors: RowTable) -> AnnIndex:
        """The same index with exact vectors from elsewhere, by item index."""
        return AnnIndex(self._index, vectors, self.spec)

    def refilled(self, ids: np.ndarray) -> AnnIndex:
        """Another index of items [n] int32 alone, with the lists and codes that this one has learnt.

        Much quicker than learning them, and as good as long as most items were there then. All items are put in
        anew: FAISS's fast-scan lists leave the bits of removed codes behind, and spoil those that are added later.
        """
        index = faiss.deserialize_index(faiss.serialize_index(self._index))
        index.reset()
        _fill(index, ids, self.vectors)
        return AnnIndex(index, self.vectors, self.spec)

    @classmethod
    def of_items(cls, ids: np.ndarray, vectors: RowTable, spec: IndexSpec, seed: int = 0) -> AnnIndex:
        """Build anew over items [n] int32 alone; as `build`."""
        known = np.ascontiguousarray(vectors[ids], np.float32)
        _check_finite(known)
        index = _train(known, spec, seed)
        _fill(index, ids, vectors)
        return cls(index, vectors, spec)

    def scores(self, queries: np.ndarray) -> np.ndarray:
        """Inner product of each query with every item, [B, I + 2] float32.

        -inf for items that the index does not hold, NaN throughout for a query that is not finite.
        """
        queries = self._as_queries(queries)
        finite = np.isfinite(queries)
        assert isinstance(self.vectors, np.ndarray)
        with np.errstate(invalid="ignore"):
            found = queries @ self.vectors.T
        found[:, self._absent] = -np.inf
        if not finite.all():
            found[~finite.all(1)] = np.nan
        return found

    def scored(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Items [1, n] int32 and their `scores` [B, n], for catalogues so small that all of it is scored."""
        return self.every, self.scores(queries)

    @cached_property
    def every(self) -> np.ndarray:
        """The items that the columns of `scores` are of, [1, I + 2] int32."""
        return np.arange(len(self.vectors), dtype=np.int32)[None]

    @cached_property
    def _absent(self) -> np.ndarray:
        """Indices of the rows of ``vectors`` that are not indexed."""
        return np.setdiff1d(np.arange(len(self.vectors)), self.ids())

    def ids(self) -> np.ndarray:
        """All indexed item indices, ascending, int64."""
        if self._ivf is None:
            return np.sort(faiss.vector_to_array(self._index.id_map))
        lists = self._ivf.invlists
        sizes = [lists.list_size(number) for number in range(self._ivf.nlist)]
        held = [faiss.rev_swig_ptr(lists.get_ids(n), size).copy() for n, size in enumerate(sizes) if size]
        return np.sort(np.concatenate(held)) if held else np.zeros(0, np.int64)

    def save(self, folder: Path) -> None:
        """Write index, spec and float vectors into an existing folder."""
        faiss.write_index(self._index, str(folder / INDEX_FILE))
        (folder / SPEC_FILE).write_bytes(orjson.dumps(asdict(self.spec), option=orjson.OPT_INDENT_2))
        np.save(folder / VECTORS_FILE, self.vectors)

    @classmethod
    def load(cls, folder: Path, items: int | None = None) -> AnnIndex:
        """Read what `save` wrote; the vectors are memory-mapped.

        Args:
            items: how many items the release has (vocabulary rows minus two); checked when given.
        Raises:
            ArtifactError: a file is missing or unreadable, or index, vectors and items do not match.
        """
        try:
            spec = IndexSpec(**orjson.loads((folder / SPEC_FILE).read_bytes()))
            vectors = np.asarray(np.load(folder / VECTORS_FILE, mmap_mode="r", allow_pickle=False))
            index = faiss.read_index(str(folder / INDEX_FILE))
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            raise ArtifactError(f"{folder}: index not readable ({error}); rebuild the release") from error
        _check_match(folder, index, vectors, items)
        loaded = cls(index, vectors, spec)
        if len(np.unique(loaded.ids())) != len(loaded):
            raise ArtifactError(f"{folder / INDEX_FILE}: holds an item index twice; rebuild the release")
        return loaded

    def _probe(
        self, queries: np.ndarray, k: int, nprobe: int, eligible: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """One FAISS search: items [B, k] int32 with 0 for FAISS's -1, scores [B, k] float32."""
        # The selector points into `packed`, so that array must outlive the search.
        packed = None if eligible is None else np.packbits(eligible, bitorder="little")
        selector = None if packed is None else faiss.IDSelectorBitmap(packed)
        scores, ids = self._index.search(queries, k, params=self._parameters(nprobe, selector))  # type: ignore[call-arg]
        missing = ids < FIRST_KNOWN
        return np.where(missing, 0, ids).astype(np.int32), np.where(missing, -np.inf, scores).astype(np.float32)

    def _parameters(self, nprobe: int, selector) -> faiss.SearchParameters:
        """Parameters travel with the call, so concurrent searches cannot change each other's probe."""
        chosen = {} if selector is None else {"sel": selector}
        if self._ivf is None:
            return faiss.SearchParameters(**chosen)
        inner = faiss.SearchParametersIVF(nprobe=min(nprobe, self._ivf.nlist), **chosen)
        if isinstance(self._index, faiss.IndexPreTransform):
            return faiss.SearchParametersPreTransform(index_params=inner)
        return inner

    def _rescore(self, queries: np.ndarray, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Order the found items by exact inner product."""
        exact = np.einsum("bd,bnd->bn", queries, self.vectors[items])
        return best_first(items, np.where(items > 0, exact, -np.inf), items.shape[1])

    def _as_queries(self, queries: np.ndarray) -> np.ndarray:
        if queries.ndim != 2 or queries.shape[1] != self.dim:
            raise ArtifactError(
                f"query vectors have shape {queries.shape}, the index holds {self.dim} dimensions; "
                "user tower and index are from different releases"
            )
        return np.ascontiguousarray(queries, np.float32)


def best_first(items: np.ndarray, scores: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The n best of each row in falling score: items, scores [B, C] to [B, min(n, C)]; ties by the item's index.

    Entries at -inf or NaN, and those that are no known item, come out as padding (item 0, -inf).
    """
    items = np.ascontiguousarray(np.broadcast_to(items, scores.shape), np.int32)
    return read_keys(best_keys(keys_of(items, np.ascontiguousarray(scores, np.float32)), n))


def _train(known: np.ndarray, spec: IndexSpec, seed: int) -> faiss.Index:
    """An empty, trained index that stores ids given by the caller."""
    try:
        index = faiss.index_factory(known.shape[1], spec.factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise ArtifactError(f"factory {spec.factory!r} unusable at dimension {known.shape[1]}: {error}") from error
    ivf = faiss.try_extract_index_ivf(index)
    if ivf is None:
        # Only a flat index goes under an id map: around an IVF, removal leaves the map's rows shifted.
        return faiss.IndexIDMap2(index) if not isinstance(index, faiss.IndexIDMap2) else index
    if len(known) < ivf.nlist:
        raise ArtifactError(f"index factory {spec.factory!r} needs at least {ivf.nlist} items, there are {len(known)}")
    ivf.cp.seed, ivf.cp.max_points_per_centroid, ivf.cp.niter = seed + 1, TRAIN_POINTS_PER_LIST, TRAIN_ROUNDS
    sample = np.random.default_rng(seed).permutation(len(known))[: max(TRAIN_POINTS_PER_LIST * ivf.nlist, 65_536)]
    try:
        index.train(known[np.sort(sample)])  # type: ignore[call-arg]
    except RuntimeError as error:
        raise ArtifactError(f"index factory {spec.factory!r} cannot train on {len(known)} items: {error}") from error
    return index


def _fill(index: faiss.Index, ids: np.ndarray, vectors: np.ndarray | RowTable) -> None:
    for start in range(0, len(ids), ADDED_AT_ONCE):
        some = ids[start : start + ADDED_AT_ONCE]
        index.add_with_ids(np.ascontiguousarray(vectors[some], np.float32), some.astype(np.int64))  # type: ignore[call-arg]


def _empty(rows: int, k: int, failed: np.ndarray) -> Neighbours:
    return Neighbours(np.zeros((rows, k), np.int32), np.full((rows, k), -np.inf, np.float32), failed)


def _check_finite(vectors: np.ndarray) -> None:
    bad = np.flatnonzero(~np.isfinite(vectors).all(1))
    if len(bad):
        raise ArtifactError(f"item vectors are not finite, first at row {bad[0]} ({len(bad)} in all); train again")


def _check_match(folder: Path, index: faiss.Index, vectors: np.ndarray, items: int | None) -> None:
    if vectors.ndim != 2 or vectors.shape[1] != index.d:
        raise ArtifactError(
            f"{folder / VECTORS_FILE}: shape {vectors.shape}, the index has {index.d} dimensions; rebuild the release"
        )
    if items is not None and (index.ntotal != items or len(vectors) != items + FIRST_KNOWN):
        raise ArtifactError(
            f"{folder / INDEX_FILE}: {index.ntotal} rows and {len(vectors) - FIRST_KNOWN} vectors for {items} items; "
            "index and id map are from different releases"
        )
