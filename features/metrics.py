"""Offline metrics of ranking quality."""

from __future__ import annotations

import numpy as np


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Area under the ROC curve of scores [n] for labels [n] in {0, 1}; ties count half.

    Source: the Mann-Whitney U statistic over average ranks. NaN when a class is absent.
    """
    positives = int(labels.sum())
    negatives = len(labels) - positives
    if not positives or not negatives:
        return float("nan")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2.0)[inverse]
    return float((ranks[labels > 0].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def log_loss(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Mean negative log-likelihood of labels [n] under probabilities [n]."""
    p = np.clip(probabilities.astype(np.float64), 1e-7, 1 - 1e-7)
    return float(-np.mean(labels * np.log(p) + (1 - labels) * np.log(1 - p)))


def calibration_error(labels: np.ndarray, probabilities: np.ndarray, bins: int = 10) -> float:
    """Expected calibration error of probabilities [n] for labels [n] in {0, 1}, over bins of equal size.

    Source: Naeini et al. 2015, with bins by rank, as scores of likes crowd together.
    """
    order = np.argsort(probabilities, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    gaps = [abs(float(labels[part].mean()) - float(probabilities[part].mean())) * len(part) for part in parts]
    return sum(gaps) / len(order) if len(order) else float("nan")


def hits(ranked: np.ndarray, relevant: list[np.ndarray]) -> np.ndarray:
    """Which ranked items [B, k] are among each row's relevant ones; [B, k] bool."""
    return np.stack([np.isin(row, wanted) for row, wanted in zip(ranked, relevant, strict=True)])


def recall_at_k(ranked: np.ndarray, relevant: list[np.ndarray]) -> float:
    """Mean over rows of the share of relevant items found in ranked [B, k]; every row has a relevant item."""
    found = hits(ranked, relevant).sum(1)
    return float(np.mean(found / np.array([len(wanted) for wanted in relevant])))


def ndcg_at_k(ranked: np.ndarray, relevant: list[np.ndarray]) -> float:
    """Mean normalised discounted cumulative gain of ranked [B, k] with binary relevance.

    Source: Jaervelin and Kekaelaeinen 2002; the ideal list is cut at k, as RecBole does.
    """
    k = ranked.shape[1]
    discounts = 1.0 / np.log2(np.arange(2, k + 2))
    ideal = np.cumsum(discounts)[np.minimum([len(wanted) for wanted in relevant], k) - 1]
    return float(np.mean((hits(ranked, relevant) * discounts).sum(1) / ideal))
