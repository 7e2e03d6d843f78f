"""Telling growth from a level."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.soak import growth, used_bytes
from deployments.cluster import OBJECT_STORE_BYTES


def test_the_slope_is_that_after_the_warm_up():
    sent = np.arange(0, 101_000, 1_000)
    sizes = np.where(sent < 25_000, sent * 1_000, 25e6 + (sent - 25_000) * 30)  # fills, then 30 bytes a request
    found = growth("replica", sizes, sent)
    assert found.mb_per_100k == pytest.approx(3.0)
    assert (found.first_mb, found.last_mb) == (0, pytest.approx(27.25))


def test_the_use_of_the_object_store_is_read_from_what_ray_prints():
    said = (
        "--- Aggregate object store stats across all nodes ---\nPlasma memory usage 0 MiB, 2 objects, 0.25% full, 0.2%"
    )
    assert used_bytes(said) == pytest.approx(OBJECT_STORE_BYTES / 400)
    with pytest.raises(ValueError, match="no connection"):
        used_bytes("no connection")
