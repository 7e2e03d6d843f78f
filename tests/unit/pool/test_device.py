"""A device says what it is, and one that cannot be is refused where it is made."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace

import pytest

from configs.errors import ConfigError
from pool.device import Device, Topology

GPU = Device("gpu-0", "gpu", 16 << 30, Topology("node-a", "rack-1", "zone-1"), price_per_hour=2.5)


@pytest.mark.parametrize("kind", ["cpu", "gpu", "npu"])
def test_every_view_says_whether_a_device_is_emulated(kind):
    assert replace(GPU, kind=kind).label == kind
    assert replace(GPU, kind=kind, emulated=True, cores=(0, 1)).label == f"{kind} (emulated)"


def test_devices_travel_between_processes():
    assert pickle.loads(pickle.dumps(GPU)) == GPU


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", ""),
        ("id", "gpu\n0"),
        ("topology", Topology("node\x00")),
        ("topology", Topology("node", zone="\ud800")),
        ("kind", "tpu"),
        ("memory_bytes", -1),
        ("memory_bytes", (1 << 45) + 1),
        ("memory_bytes", 1.5),
        ("memory_bytes", True),
        ("cores", (0, 0)),
        ("cores", (-1,)),
        ("price_per_hour", math.nan),
        ("price_per_hour", math.inf),
        ("price_per_hour", -0.01),
    ],
)
def test_a_device_that_cannot_be_is_refused_by_name(field, value):
    with pytest.raises(ConfigError) as refusal:
        replace(GPU, **{field: value})
    assert field in refusal.value.message or field == "topology"
    assert field == "id" or "gpu-0" in refusal.value.message


def test_the_bounds_themselves_are_allowed():
    assert replace(GPU, memory_bytes=0, price_per_hour=0.0, cores=()).memory_bytes == 0
    assert replace(GPU, memory_bytes=1 << 45).memory_bytes == 32 * 1024**4
