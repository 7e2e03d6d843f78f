"""Which devices the pool has: those the settings state, else what the nodes have."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from configs.errors import ConfigError
from configs.plan_settings import Tier
from configs.pool_runtime_settings import DeviceSettings
from pool.device import Device, Topology
from pool.runtime.messages import NodeFound, RayNode, Site

RESOURCE = "device/"
"""Begins the name of the Ray resource of a device."""


def resource_of(device_id: str) -> str:
    return f"{RESOURCE}{device_id}"


def sites_of(
    stated: Sequence[DeviceSettings],
    nodes: Sequence[RayNode],
    found: Mapping[str, NodeFound],
    prices: Mapping[Tier, float] | None = None,
) -> dict[str, Site]:
    """Every device of the nodes that live and whose agents have answered, by id.

    Args:
        stated: devices of the settings; empty: every node's cores as one device, and its accelerators.
        found: by id of the node.
        prices: an hour of a whole device by kind, where a device states none; 0 without one.
    Raises:
        ConfigError: a device of the settings has cores or an accelerator that its node lacks.
    """
    present = [node for node in nodes if node.is_alive and node.id in found]
    if not stated:
        sites = {site.device.id: site for node in present for site in _whole_node(node, found[node.id])}
        return {name: _priced(site, prices or {}) for name, site in sites.items()}
    sites = {}
    for place, device in enumerate(stated):
        node = next((node for node in present if node.name == device.node or (node.is_head and not device.node)), None)
        if node is not None:
            check_device(device, place, found[node.id])
            sites[device.id] = _priced(Site(_device(device, node.name), node.id, device.index), prices or {})
    return sites


def check_device(device: DeviceSettings, place: int, node: NodeFound) -> None:
    """Raise ConfigError when a node lacks what a device is made of; names the field."""
    missing = sorted(set(device.cores) - set(node.cores))
    if missing:
        raise ConfigError(
            f"pool.devices.{place}.cores: {device.id} has cores {missing}, which its node lacks or may not use; it has "
            f"{list(node.cores)}"
        )
    there = [each.index for each in node.accelerators if each.kind == device.kind]
    if device.index is not None and device.index not in there:
        raise ConfigError(
            f"pool.devices.{place}.index: {device.id} is {device.kind} {device.index}, its node has {there or 'none'}; "
            "emulated: true with cores stands in for one"
        )


def node_devices(stated: Sequence[DeviceSettings], node: RayNode, found: NodeFound) -> dict[str, float]:
    """The Ray resources of a node's devices, each 1.0, for ``ray start``; raises as `sites_of`."""
    return {resource_of(device): 1.0 for device in sites_of(stated, [node], {node.id: found})}


def _whole_node(node: RayNode, found: NodeFound) -> list[Site]:
    name = re.sub(r"[^A-Za-z0-9._-]", "-", node.name)[-48:].lstrip("._-") or "node"
    place = Topology(node.name)
    cores = Device(f"cpu-{name}", "cpu", found.memory_bytes, place, found.cores)
    return [
        Site(cores, node.id),
        *(
            Site(Device(f"{each.kind}-{name}-{each.index}", each.kind, each.memory_bytes, place), node.id, each.index)
            for each in found.accelerators
        ),
    ]


def _priced(site: Site, prices: Mapping[Tier, float]) -> Site:
    price = site.device.price_per_hour or prices.get(site.device.kind, 0.0)
    return replace(site, device=replace(site.device, price_per_hour=price))


def _device(stated: DeviceSettings, node: str) -> Device:
    return Device(
        id=stated.id,
        kind=stated.kind,
        memory_bytes=stated.memory_bytes,
        topology=Topology(node, stated.rack, stated.zone),
        cores=stated.cores,
        emulated=stated.emulated,
        price_per_hour=stated.price_per_hour,
    )
