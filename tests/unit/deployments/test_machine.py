"""What the machine has, seen from the device files and the variables that hide some of them."""

from __future__ import annotations

import pytest

from deployments.environment import cores
from deployments.machine import advice, machine_resources


@pytest.fixture
def devices(tmp_path):
    """Two NVIDIA devices and one Ascend device, among files of their drivers that are none."""
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "davinci0", "davinci_manager", "null"):
        (tmp_path / name).touch()
    return tmp_path


def test_device_files_with_a_number_are_counted(devices):
    assert machine_resources(devices, {}) == {"CPU": cores(), "GPU": 2, "NPU": 1}


def test_a_machine_without_accelerators_has_cores(tmp_path):
    assert machine_resources(tmp_path, {}) == {"CPU": cores(), "GPU": 0, "NPU": 0}


@pytest.mark.parametrize(
    ("stated", "seen"),
    [("", 0), ("-1", 0), ("NoDevFiles", 0), ("1", 1), ("0,1", 2), ("1,-1,0", 1), ("GPU-6a1b", 1), ("0,1,2,3", 2)],
)
def test_a_variable_hides_devices_and_adds_none(devices, stated, seen):
    found = machine_resources(devices, {"CUDA_VISIBLE_DEVICES": stated})
    assert (found["GPU"], found["NPU"]) == (seen, 1)
    assert machine_resources(devices, {"ASCEND_RT_VISIBLE_DEVICES": stated})["NPU"] == min(seen, 1)


@pytest.mark.parametrize(("stated", "lines"), [("1\n", 1), ("0\n", 0), (None, 0)])
def test_a_kernel_that_shares_out_by_session_is_worth_a_word(tmp_path, stated, lines):
    switch = tmp_path / "sched_autogroup_enabled"
    if stated is not None:
        switch.write_text(stated)
    assert len(advice(switch)) == lines
