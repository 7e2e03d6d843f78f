from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import ArtifactError, ConfigError
from features.row_table import RowTable
from recall.index import AnnIndex, best_first
from recall.index_spec import IndexSpec


def vectors(items: int, dim: int = 8, seed: int = 0) -> np.ndarray:
    out = np.random.default_rng(seed).normal(size=(items + 2, dim)).astype(np.float32)
    out[:2] = 100.0  # rows that would win every search if they were indexed
    return out


def exact(stored: np.ndarray, queries: np.ndarray, k: int, allowed: np.ndarray | None = None) -> np.ndarray:
    scores = queries @ stored.T
    scores[:, :2] = -np.inf
    if allowed is not None:
        scores[:, ~allowed] = -np.inf
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


@pytest.fixture(scope="module")
def sparse_lists() -> AnnIndex:
    """Forty lists of about five items each: one probe cannot fill a long answer."""
    return AnnIndex.build(vectors(200), IndexSpec("IVF40,Flat", nprobe=1))


def test_an_answer_is_full_where_one_probe_of_a_thousand_lists_finds_nothing_at_all(tmp_path: Path):
    """FAISS itself gives only -1 here, because the nearest list has lost its items."""
    index = AnnIndex.build(vectors(2_000, 4), IndexSpec("IVF1000,Flat", nprobe=1))
    query = np.random.default_rng(1).normal(size=(1, 4)).astype(np.float32)

    def one_probe() -> np.ndarray:
        index.save(tmp_path)
        raw = faiss.read_index(str(tmp_path / "index.faiss"))
        return raw.search(query, 32, params=faiss.SearchParametersIVF(nprobe=1))[1][0]

    nearest = one_probe()
    index = index.refilled(np.setdiff1d(index.ids(), nearest))
    assert (one_probe() == -1).all()
    found = index.search(query, 32).items[0]
    assert len(set(found.tolist()) & set(index.ids().tolist())) == 32


@given(items=st.integers(1, 60), k=st.integers(1, 80), rows=st.integers(1, 4), seed=st.integers(0, 99))
def test_a_small_catalogue_is_searched_exactly_and_only_real_items_come_out(items, k, rows, seed):
    stored = vectors(items, seed=seed)
    queries = np.random.default_rng(seed + 1).normal(size=(rows, 8)).astype(np.float32)
    found = AnnIndex.build(stored).search(queries, k)
    assert found.items.shape == (rows, k)
    width = min(k, items)
    np.testing.assert_array_equal(found.items[:, :width], exact(stored, queries, width))
    assert (found.items[:, width:] == 0).all() and np.isneginf(found.scores[:, width:]).all()


def test_the_probe_widens_until_k_items_are_found(sparse_lists):
    queries = np.random.default_rng(3).normal(size=(5, 8)).astype(np.float32)
    found = sparse_lists.search(queries, 150)
    assert (found.items >= 2).all()
    assert all(len(set(row)) == 150 for row in found.items.tolist())


def test_a_query_that_is_not_finite_fails_alone(sparse_lists):
    queries = np.random.default_rng(4).normal(size=(3, 8)).astype(np.float32)
    expected = sparse_lists.search(queries, 5).items
    queries[1, 2] = np.nan
    found = sparse_lists.search(queries, 5)
    assert found.failed.tolist() == [False, True, False]
    assert (found.items[1] == 0).all()
    np.testing.assert_array_equal(found.items[[0, 2]], expected[[0, 2]])


def test_fast_scan_survives_a_nan_beside_good_queries():
    index = AnnIndex.build(vectors(400, 16), IndexSpec("IVF4,PQ16x4fs", nprobe=4, refine=1.0))
    queries = np.random.default_rng(5).normal(size=(2, 16)).astype(np.float32)
    queries[0, 0] = np.inf
    found = index.search(queries, 20)
    assert found.failed.tolist() == [True, False] and (found.items[1] >= 2).all()


def test_fast_scan_keeps_to_an_eligibility_mask_and_fills_the_answer_from_it():
    stored = vectors(2_000, 16)
    index = AnnIndex.build(stored, IndexSpec("IVF16,PQ16x4fs", nprobe=2, refine=4.0))
    allowed = np.random.default_rng(9).random(2_002) < 0.05
    queries = np.random.default_rng(10).normal(size=(4, 16)).astype(np.float32)
    found = index.search(queries, 60, eligible=allowed).items
    assert allowed[found].all() and (found >= 2).all()
    assert all(len(set(row)) == 60 for row in found.tolist())
    every = int(allowed[2:].sum())
    best = index.search(queries, every + 5, nprobe=16, eligible=allowed).items
    np.testing.assert_array_equal(best[:, :every], exact(stored, queries, every, allowed))
    assert not best[:, every:].any()


@pytest.mark.parametrize("factory", ["Flat", "IVF8,Flat"])
def test_ineligible_items_never_come_out(factory):
    stored = vectors(100)
    index = AnnIndex.build(stored, IndexSpec(factory, nprobe=1))
    allowed = np.zeros(102, bool)
    allowed[10:102:11] = True
    queries = np.random.default_rng(6).normal(size=(2, 8)).astype(np.float32)
    found = index.search(queries, 9, eligible=allowed)
    np.testing.assert_array_equal(found.items, exact(stored, queries, 9, allowed))
    np.testing.assert_array_equal(index.search_among(queries, np.flatnonzero(allowed), 9).items, found.items)


def test_search_among_nothing_gives_padding_only(sparse_lists):
    found = sparse_lists.search_among(np.ones((2, 8), np.float32), np.array([0, 1], np.int32), 3)
    assert (found.items == 0).all()


def test_a_batch_of_one_equals_its_row_in_a_batch(sparse_lists):
    queries = np.random.default_rng(7).normal(size=(6, 8)).astype(np.float32)
    together = sparse_lists.search(queries, 30)
    for row in range(6):
        alone = sparse_lists.search(queries[row : row + 1], 30)
        np.testing.assert_array_equal(alone.items[0], together.items[row])


@pytest.mark.parametrize("factory", ["Flat", "IVF4,Flat", "IVF4,PQ8x4fs"])
def test_an_index_filled_anew_holds_the_items_given_with_the_vectors_they_have_now(factory):
    table = RowTable(vectors(300))
    index = AnnIndex.build(vectors(300), IndexSpec(factory, nprobe=4, refine=1.0)).over(table)
    changed = np.full((2, 8), 5.0, np.float32)
    changed[1, 0] = 6.0
    table.put(np.array([7, 302], np.int32), changed)
    kept = np.setdiff1d(np.arange(2, 303), [9])
    for again in (index.refilled(kept), index.refilled(kept[:50]).refilled(kept)):
        np.testing.assert_array_equal(again.ids(), kept)
        assert again.search(np.ones((1, 8), np.float32), 2).items[0].tolist() == [302, 7]
        assert 9 not in again.search(np.ones((1, 8), np.float32), 300).items
    assert len(index) == 300


def test_saved_index_answers_alike_and_vectors_are_mapped(tmp_path: Path, sparse_lists):
    sparse_lists.save(tmp_path)
    loaded = AnnIndex.load(tmp_path, items=200)
    queries = np.random.default_rng(8).normal(size=(3, 8)).astype(np.float32)
    np.testing.assert_array_equal(loaded.search(queries, 9).items, sparse_lists.search(queries, 9).items)
    assert isinstance(loaded.vectors.base, np.memmap)


def test_an_index_from_another_release_is_refused_by_name(tmp_path: Path, sparse_lists):
    sparse_lists.save(tmp_path)
    with pytest.raises(ArtifactError, match=r"index\.faiss: 200 rows .* for 1281 items"):
        AnnIndex.load(tmp_path, items=1281)
    np.save(tmp_path / "item_vectors.npy", np.zeros((202, 4), np.float32))
    with pytest.raises(ArtifactError, match=r"item_vectors\.npy.*8 dimensions"):
        AnnIndex.load(tmp_path, items=200)
    (tmp_path / "index.faiss").write_bytes(b"half")
    with pytest.raises(ArtifactError, match="not readable"):
        AnnIndex.load(tmp_path)


def test_bad_settings_name_what_is_wrong():
    with pytest.raises(ArtifactError, match="at least 64 items, there are 10"):
        AnnIndex.build(vectors(10), IndexSpec("IVF64,Flat"))
    with pytest.raises(ArtifactError, match="'Nonsense'"):
        AnnIndex.build(vectors(10), IndexSpec("Nonsense"))
    with pytest.raises(ArtifactError, match="not finite, first at row 3"):
        bad = vectors(10)
        bad[3, 0] = np.nan
        AnnIndex.build(bad)
    with pytest.raises(ConfigError, match="nprobe"):
        IndexSpec("Flat", nprobe=0)
    with pytest.raises(ArtifactError, match="different releases"):
        AnnIndex.build(vectors(10)).search(np.ones((1, 3), np.float32), 1)


def test_the_automatic_choice_grows_with_the_catalogue_and_yields_to_overrides():
    assert IndexSpec.choose(1, 64).factory == "Flat"
    assert IndexSpec.choose(1_000_000, 64).factory.endswith("PQ64x4fs")
    chosen = IndexSpec.choose(1_000_000, 64, nlist=100, nprobe=7, refine=2.0)
    assert (chosen.factory, chosen.nprobe, chosen.refine) == ("IVF100,PQ64x4fs", 7, 2.0)
    assert IndexSpec.choose(50, 64, factory="IVF4,Flat").factory == "IVF4,Flat"


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=40), st.integers(1, 50))
def test_best_first_agrees_with_a_full_sort(scores, n):
    values = np.array([scores], np.float32)
    items = np.arange(2, len(scores) + 2, dtype=np.int32)[None]
    found, kept = best_first(items, values, n)
    order = sorted(range(len(scores)), key=lambda i: (-values[0, i], i))[:n]
    np.testing.assert_array_equal(kept[0], values[0, order])
    assert sorted(values[0][found[0] - 2]) == sorted(values[0, order])
