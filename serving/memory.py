"""Whether a second release fits into memory beside the one that serves."""

from __future__ import annotations

import psutil

from configs.errors import Unavailable
from pool.manifest import Manifest

FACTOR = 2.0
"""A release in memory over its files: models are parsed and packed, tables are mapped, catalogues become Python."""
MIB = 1 << 20


def require_room(manifest: Manifest, budget_mib: int | None) -> None:
    """Raise Unavailable, with the figures, when a release does not fit beside what this process holds.

    Args:
        budget_mib: what the process may hold in all; absent: as much as the machine has left.
    """
    needed = int(manifest.total_bytes * FACTOR)
    free = psutil.virtual_memory().available
    where, remedy = "are free on this machine", "free some, or promote it at a restart"
    if budget_mib is not None:
        left = budget_mib * MIB - psutil.Process().memory_full_info().uss
        if left < free:
            free, where = left, f"are left of plan.gateway.memory_mib = {budget_mib}"
            remedy = "raise it, or promote the release at a restart"
    if needed > free:
        raise Unavailable(
            f"release {manifest.version} needs about {needed / MIB:,.0f} MiB beside the one that serves, and "
            f"{max(0, free) / MIB:,.0f} MiB {where}; {remedy}"
        )
