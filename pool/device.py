"""Devices: what slices are cut from.

A device is one accelerator or one set of CPU cores. An emulated device is a pinned set of cores that
stands in for a GPU or an NPU; whoever shows one says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from configs.errors import ConfigError

DeviceKind = Literal["cpu", "gpu", "npu"]

CAPACITY_MILLI = 1000
"""Milli-units of a whole device: a slice of 300 is 30% of it."""

MOST_MEMORY_BYTES = 1 << 45
"""32 TiB: above any device or host; a larger figure is a wrong unit."""


def is_whole(value: object) -> bool:
    """Whether it is an integer; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class Topology:
    """Where a device stands. Loads that must not fail together go to different nodes, racks or zones."""

    node: str
    rack: str = ""
    zone: str = ""


@dataclass(frozen=True)
class Device:
    """One device of the pool.

    Attributes:
        id: unique in the pool; also names the Ray resource ``device/<id>``.
        cores: CPU cores, of a CPU device or an emulated one; empty for an accelerator.
        price_per_hour: of the whole device, in the profile's currency.

    Raises:
        ConfigError: a field is out of its range; names the device and the field.
    """

    id: str
    kind: DeviceKind
    memory_bytes: int
    topology: Topology
    cores: tuple[int, ...] = ()
    emulated: bool = False
    price_per_hour: float = 0.0

    def __post_init__(self) -> None:
        wrong = self._wrong_field()
        if wrong:
            raise ConfigError(f"device {self.id!r:.80}: {wrong}")

    def _wrong_field(self) -> str | None:
        # Names end up in file names, messages and journals; a line break or half a character would break those.
        names = (self.id, self.topology.node, self.topology.rack, self.topology.zone)
        if not self.id or not all(name.isprintable() for name in names):
            return "id, node, rack and zone are printable and the id is not empty"
        if self.kind not in get_args(DeviceKind):
            return f"kind {self.kind!r:.40} is none of {', '.join(get_args(DeviceKind))}"
        if not is_whole(self.memory_bytes) or not 0 <= self.memory_bytes <= MOST_MEMORY_BYTES:
            return f"memory_bytes {self.memory_bytes!r:.40} is no whole number from 0 to {MOST_MEMORY_BYTES}"
        if len(set(self.cores)) < len(self.cores) or not all(is_whole(core) and core >= 0 for core in self.cores):
            return f"cores {self.cores!r:.80} are distinct whole numbers from 0"
        if not math.isfinite(self.price_per_hour) or self.price_per_hour < 0:
            return f"price_per_hour {self.price_per_hour} is no finite number from 0"
        return None

    @property
    def label(self) -> str:
        """The kind as every view shows it."""
        return f"{self.kind} (emulated)" if self.emulated else self.kind
