from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from configs.errors import ArtifactError
from features.eligibility import mask_rows
from recall.item_to_item import NeighbourTable, ease_weights, shrunk_cosine, top_neighbours, train_neighbours
from recall.kernels import read_keys


def reached(table: NeighbourTable, history: np.ndarray, n: int = 50) -> tuple[np.ndarray, np.ndarray]:
    """With every event counting once and nothing excluded."""
    ones, nothing = np.ones(history.shape, np.float32), np.zeros((len(history), 0), np.int32)
    return read_keys(table.reached(history, ones, nothing, mask_rows(None), n))


@pytest.fixture
def matrix() -> sp.csr_matrix:
    dense = (np.random.default_rng(0).random((25, 9)) < 0.4).astype(np.float32)
    dense[:, :2] = 0
    return sp.csr_matrix(dense)


def test_ease_solves_its_constrained_ridge_regression(matrix):
    """Each column is the ridge regression of one item on all the others (Steck 2019, equation 2)."""
    l2, dense = 3.0, matrix.toarray().astype(np.float64)
    weights = ease_weights(matrix, l2)
    for item in range(2, dense.shape[1]):
        others = [other for other in range(dense.shape[1]) if other != item]
        inputs = dense[:, others]
        expected = np.linalg.solve(inputs.T @ inputs + l2 * np.eye(len(others)), inputs.T @ dense[:, item])
        np.testing.assert_allclose(weights[others, item], expected, atol=1e-5)
    assert (np.diag(weights) == 0).all()


def test_a_full_table_scores_like_the_dense_product(matrix):
    weights = ease_weights(matrix, 2.0)
    table = top_neighbours(weights, 9)
    history = np.array([[3, 5, 0], [8, 0, 0], [0, 0, 0]], np.int32)
    items, scores = reached(table, history)
    for row, events in enumerate(history):
        expected = sum((weights[e] for e in events if e), np.zeros(9))
        kept = items[row] > 0
        np.testing.assert_allclose(scores[row][kept], expected[items[row][kept]], atol=1e-6)
    assert not items[2].any() and np.isneginf(scores[2]).all()


def test_the_largest_weights_by_magnitude_are_kept(matrix):
    weights = ease_weights(matrix, 2.0)
    table = top_neighbours(weights, 2)
    for row in range(2, 9):
        expected = np.sort(np.abs(weights[row, 2:]))[::-1][:2]
        np.testing.assert_allclose(np.sort(np.abs(table.weights[row]))[::-1], expected)


def test_shrunk_cosine_agrees_with_its_formula(matrix):
    table = shrunk_cosine(matrix, 4, shrinkage=5.0)
    dense = matrix.toarray()
    together = dense.T @ dense
    sizes = np.diag(together)
    for row in range(2, 9):
        pairs = {
            other: together[row, other] ** 2 / (sizes[row] * sizes[other]) ** 0.5 / (together[row, other] + 5)
            for other in range(2, 9)
            if other != row and together[row, other] > 0
        }
        expected = sorted(pairs.values(), reverse=True)[:4]
        np.testing.assert_allclose(table.weights[row][: len(expected)], expected, rtol=1e-5)
        assert row not in table.items[row]


def test_saved_tables_come_back_and_misfits_are_refused(tmp_path, matrix):
    table = train_neighbours(matrix, 3)
    table.save(tmp_path)
    loaded = NeighbourTable.load(tmp_path, items=7)
    np.testing.assert_array_equal(loaded.items, table.items)
    with pytest.raises(ArtifactError, match="the release has 8"):
        NeighbourTable.load(tmp_path, items=8)


def test_one_item_has_no_neighbours():
    table = train_neighbours(sp.csr_matrix(np.array([[0, 0, 1]], np.float32)), 5)
    items, _ = reached(table, np.array([[2]], np.int32))
    assert not items.any()
