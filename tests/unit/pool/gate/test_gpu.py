"""What of the CUDA back end needs no device: the memory quota of a lease."""

from __future__ import annotations

import pytest

from configs.errors import ConfigError, Conflict
from pool.gate.gpu import STREAM_PRIORITY, enter_device, memory_fraction


def test_the_quota_is_the_leases_share_of_the_memory():
    assert memory_fraction(2 << 30, 6 << 30, 8 << 30) == 0.25
    assert memory_fraction(8 << 30, 8 << 30, 8 << 30) == 1.0


@pytest.mark.parametrize(
    ("memory", "free", "error"), [(0, 8, ConfigError), (9, 8, ConfigError), (-1, 8, ConfigError), (5, 4, Conflict)]
)
def test_a_lease_that_does_not_fit_is_refused(memory, free, error):
    with pytest.raises(error, match="memory_bytes"):
        memory_fraction(memory, free, 8)


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="CUDA device 99"):
        enter_device(99, "guaranteed", 1)


def test_streams_go_in_the_order_of_priorities():
    assert STREAM_PRIORITY["guaranteed"] < STREAM_PRIORITY["burstable"] < STREAM_PRIORITY["best_effort"]
