"""How a week's load goes up and down: a week of taxi rides, or a made one where that trace is not at hand."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np

from benchmarks.traces import REPORTED_FROM, folders

FILE = "nyc_taxi.csv"
"""Rides by half-hour in New York (Numenta Anomaly Benchmark, MIT)."""
HALF_HOURS = 7 * 48


def week() -> tuple[np.ndarray, str]:
    """Load by half-hour, [336] float64, its highest 1, and where it is from."""
    for folder in folders():
        if (folder / FILE).is_file():
            return busiest_week(read(folder / FILE)), FILE
    return made_week(), "made shape"


def read(file: Path) -> np.ndarray:
    """The counts of the part that is reported on."""
    with file.open(encoding="utf-8", newline="") as lines:
        counts = [float(row["value"]) for row in csv.DictReader(lines)]
    return np.array(counts[int(len(counts) * REPORTED_FROM) :])


def busiest_week(counts: np.ndarray) -> np.ndarray:
    """The week around the busiest half-hour, as whoever provides for the peak must do; its highest is 1."""
    first = int(np.clip(counts.argmax() - HALF_HOURS // 2, 0, max(0, len(counts) - HALF_HOURS)))
    chosen = counts[first : first + HALF_HOURS]
    return chosen / chosen.max()


def made_week() -> np.ndarray:
    """Quiet nights, busier evenings, and one evening that is busier than all; its highest is 1."""
    hours = np.arange(HALF_HOURS) / 2
    daily = 0.42 - 0.28 * np.cos((hours - 5) / 24 * 2 * math.pi) + 0.1 * np.sin((hours - 2) / 12 * 2 * math.pi)
    feast = 0.45 * np.exp(-(((hours - 3.5 * 24 - 6) / 3) ** 2))
    load = np.clip(daily + feast, 0.05, None)
    return load / load.max()


def arrivals(load: np.ndarray, peak_per_s: float, seconds: float, seed: int) -> np.ndarray:
    """Times of independent callers while the load is played within so many seconds; ascending float64 [N].

    Args:
        peak_per_s: rate where the load is 1.
    """
    rng, bin_s = np.random.default_rng(seed), seconds / len(load)
    counts = rng.poisson(load * peak_per_s * bin_s)
    return np.sort((np.repeat(np.arange(len(load)), counts) + rng.random(counts.sum())) * bin_s)
