"""The guard that keeps Ray out of unit tests works."""

from __future__ import annotations

import pytest
import ray


def test_a_unit_test_cannot_start_ray():
    with pytest.raises(AssertionError, match="tests/integration"):
        ray.init()
