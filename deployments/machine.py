"""What this machine has, by Ray's names: what the plan is made for and what Ray is told to hand out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from configs.settings import Settings
from deployments.environment import NODE_ADDRESS, cores
from pool.runtime import discovery
from pool.runtime.inventory import node_devices
from pool.runtime.messages import NodeFound, RayNode

ACCELERATORS = {"GPU": ("nvidia", "CUDA_VISIBLE_DEVICES"), "NPU": ("davinci", "ASCEND_RT_VISIBLE_DEVICES")}
"""By Ray's name: what its device files are called before their number, and the variable that narrows them down."""


def machine_resources(devices: Path = Path("/dev"), variables: Mapping[str, str] = os.environ) -> dict[str, float]:
    """Cores and accelerators that this process may use."""
    found = {"CPU": float(cores())}
    for resource, (prefix, variable) in ACCELERATORS.items():
        there = [file for file in devices.glob(f"{prefix}*") if file.name.removeprefix(prefix).isdigit()]
        found[resource] = float(min(len(there), _visible(variables.get(variable), len(there))))
    return found


def device_resources(settings: Settings) -> dict[str, float]:
    """The Ray resources of this machine's devices, for ``ray start``; none without a pool.

    Raises:
        ConfigError: a device of the settings has cores or an accelerator that this machine lacks; names the field.
    """
    if not settings.pool.runtime.enabled:
        return {}
    here = RayNode("", NODE_ADDRESS, is_alive=True, is_head=True, resources={})
    found = NodeFound(discovery.usable_cores(), discovery.memory_bytes(), discovery.accelerators(), 0)
    return node_devices(settings.pool.devices, here, found)


def advice(autogroup: Path = Path("/proc/sys/kernel/sched_autogroup_enabled")) -> list[str]:
    """What about this machine makes callers wait, and how to change it; empty where nothing is known to.

    The kernel's autogroups (sched(7)) share the cores out by session. While two replicas started on two cores, the
    slowest call took 0.3 to 4.6 s with them (Linux 6.18), and 0.2 to 0.5 s without.
    """
    if not autogroup.is_file() or autogroup.read_text().strip() == "0":
        return []
    return ["calls can stand still while replicas start; `sysctl kernel.sched_autogroup_enabled=0` spares them that"]


def _visible(stated: str | None, there: int) -> int:
    """How many devices a variable leaves to see; an entry that names none hides those after it."""
    if stated is None:
        return there
    entries = [entry.strip() for entry in stated.split(",")]
    return next((place for place, entry in enumerate(entries) if entry in ("", "-1", "NoDevFiles")), len(entries))
