"""The gate on a CUDA device: the protocol of the CPU back end, device time by events, a quota of memory."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import torch

from pool.device import Device, Topology
from pool.gate.gpu import CudaSeat, enter_device
from pool.gate.segment import GateSegment

pytestmark = pytest.mark.gpu
QUOTA_BYTES = 1 << 30


@pytest.fixture
def segment(tmp_path) -> GateSegment:
    memory = torch.cuda.get_device_properties(0).total_memory
    return GateSegment.create(tmp_path, Device("gpu-0", "gpu", memory, Topology("node")))


def multiply(seat: CudaSeat, times: int) -> torch.Tensor:
    with torch.cuda.stream(seat.stream):
        product = torch.ones(2048, 2048, device="cuda:0") / 2048
        for _ in range(times):
            product = product @ product
    return product


def test_a_turn_meters_the_devices_time_and_not_the_hosts(segment):
    seat = enter_device(0, "best_effort", QUOTA_BYTES)
    multiply(seat, 1)
    seat.stream.synchronize()
    with segment.join("train", "best_effort", 300, seat.meter) as slot:
        begun_ns = time.monotonic_ns()
        with slot.wait_turn(10.0) as turn:
            product = multiply(seat, 50)
        wall_ns = time.monotonic_ns() - begun_ns
        assert 0 < turn.metered_ns <= wall_ns
        assert product[0, 0].item() == pytest.approx(1 / 2048, rel=1e-3)


def test_guaranteed_work_keeps_turns_back_and_has_the_stream_that_goes_first(segment):
    first, rest = enter_device(0, "guaranteed", QUOTA_BYTES), enter_device(0, "best_effort", QUOTA_BYTES)
    assert first.stream.priority < rest.stream.priority
    with (
        segment.join("infer", "guaranteed", 300, first.meter) as infer,
        segment.join("train", "best_effort", 300, rest.meter) as train,
    ):
        with infer.busy():
            multiply(first, 5)
            assert train.wait_turn(0.02) is None
        assert infer.metered_ns > 0
        assert train.wait_turn(10.0) is not None


def test_a_process_cannot_allocate_beyond_its_lease():
    code = f"""
import torch
from pool.gate.gpu import enter_device
enter_device(0, "best_effort", {QUOTA_BYTES})
torch.empty({QUOTA_BYTES // 2}, dtype=torch.uint8, device="cuda:0")
try:
    torch.empty({QUOTA_BYTES}, dtype=torch.uint8, device="cuda:0")
except torch.OutOfMemoryError:
    print("refused")
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "refused\n"
