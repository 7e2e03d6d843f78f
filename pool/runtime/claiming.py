"""Claims: slices of what Serve runs, which asks for them by itself and renews them as long as it lives."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from configs.errors import Conflict, RecpoolError
from pool.device import CAPACITY_MILLI
from pool.lease import Lease
from pool.runtime.messages import Claim, Site
from pool.runtime.state import ClaimSeat, PoolState


def claim_slice(state: PoolState, claim: Claim, now_s: float) -> Lease:
    """The slice of a serving replica: the one it has, or a new one on its node.

    What does not fit whole is leased as far as there is room, since the replica runs in any case; each renewal
    tries to grow it. Replicas of one workload avoid each other's devices.

    Raises:
        Conflict: a declared workload has the name, or the node has no device that can be computed on.
    """
    if claim.workload in state.records:
        raise Conflict(f"{claim.workload!r} is a declared workload; {state.ledger.book()}")
    lease = _known(state, claim) or _returned(state, claim) or _granted(state, claim)
    lease = _grown(state, claim, lease)
    state.claims[lease.id] = ClaimSeat(replace(claim, lease=lease), now_s)
    return lease


def give_back(state: PoolState, holder: str) -> None:
    """A replica leaves; none of that name is no error."""
    for lease_id, claimed in list(state.claims.items()):
        if claimed.claim.holder == holder:
            del state.claims[lease_id]
            state.release(lease_id)


def _known(state: PoolState, claim: Claim) -> Lease | None:
    held = {lease_id for lease_id, each in state.claims.items() if each.claim.holder == claim.holder}
    return next((lease for lease in state.ledger.leases() if lease.id in held), None)


def _returned(state: PoolState, claim: Claim) -> Lease | None:
    """A slice that this book does not know: granted by a controller before this one, whose journal missed it."""
    lease = claim.lease
    if lease is None or lease.device not in state.sites:
        return None
    try:
        state.ledger.adopt([*state.ledger.leases(), lease], state.ledger.epoch)
    except RecpoolError:  # its place is taken meanwhile, or the claim is not one
        return None
    return state.ledger.lease(lease.id)


def _granted(state: PoolState, claim: Claim) -> Lease:
    def order(site: Site) -> tuple[bool, int, int, str]:
        device = site.device
        copies = len(state.ledger.leases(device=device.id, workload=claim.workload))
        return device.kind != claim.tier, copies, -state.ledger.free(device.id)[0], device.id

    sites = sorted(_candidates(state, claim), key=order)
    if not sites:
        raise Conflict(f"node {claim.node_id} has no device for {claim.workload}; {state.ledger.book()}")
    milli, memory_bytes = _affordable(state, claim, sites[0])
    return state.ledger.grant(claim.workload, sites[0].device.id, milli, memory_bytes, state.ledger.epoch)


def _candidates(state: PoolState, claim: Claim) -> Iterator[Site]:
    """Devices of the node that replicas compute on: those made of cores, as a replica's process does not choose
    its accelerator, and an accelerator of its own tier."""
    for site in state.sites.values():
        if site.node_id == claim.node_id and (site.index is None or site.device.kind == claim.tier):
            yield site


def _grown(state: PoolState, claim: Claim, lease: Lease) -> Lease:
    """Up to what the replica asked for, as far as there is room."""
    wanted = _wanted_milli(claim, state.sites[lease.device]) if lease.device in state.sites else lease.milli
    milli = min(wanted, lease.milli + state.ledger.free(lease.device)[0])
    if milli <= lease.milli:
        return lease
    return state.ledger.resize(lease.id, milli, lease.memory_bytes, state.ledger.epoch)


def _affordable(state: PoolState, claim: Claim, site: Site) -> tuple[int, int]:
    free_milli, free_bytes = state.ledger.free(site.device.id)
    return min(_wanted_milli(claim, site), free_milli), min(claim.memory_bytes, free_bytes)


def _wanted_milli(claim: Claim, site: Site) -> int:
    """Thousandths of the device that the stated thousandths of a core are."""
    return min(CAPACITY_MILLI, math.ceil(claim.core_milli / max(1, len(site.device.cores))))
