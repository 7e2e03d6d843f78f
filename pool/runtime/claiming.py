"""Claims: slices of what Serve runs, which asks for them by itself and renews them as long as it lives.

Copies beyond those that are to serve stand by: their lease holds memory alone, and they are given no calls until the
planner promotes them. A role stays with its replica, which says it with each renewal, so that it outlives controllers.
"""

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
    tries to grow it. Replicas of one workload avoid each other's devices; one that comes when enough serve stands by.

    Raises:
        Conflict: a declared workload has the name, or the node has no device that can be computed on.
    """
    if claim.workload in state.records:
        raise Conflict(f"{claim.workload!r} is a declared workload; {state.ledger.book()}")
    lease = _known(state, claim)
    before = state.claims[lease.id] if lease is not None else None
    if before is not None:
        claim = replace(claim, shadow=before.claim.shadow)
    else:
        claim = replace(claim, shadow=claim.shadow or _is_spare(state, claim))
    lease = lease or _returned(state, claim) or _granted(state, claim)
    since_s, joined = (before.since_s, before.joined) if before is not None else (now_s, False)
    state.claims[lease.id] = ClaimSeat(claim, now_s, since_s, joined)
    return _grown(state, lease.id)


def promote(state: PoolState, lease_id: str, now_s: float) -> None:
    """A shadow serves from here on; its lease grows as far as there is room, and further at its renewals."""
    _play(state, lease_id, False, now_s)
    _grown(state, lease_id)


def stand_by(state: PoolState, lease_id: str, now_s: float) -> None:
    """A serving replica is a shadow from here on; its lease keeps the memory alone."""
    lease = state.ledger.resize(lease_id, 0, state.ledger.lease(lease_id).memory_bytes, state.ledger.epoch)
    _play(state, lease.id, True, now_s)


def roles(state: PoolState) -> dict[str, bool]:
    """Whether it stands by, of each replica that has one of two roles and is known to the ingress."""
    claims = [seat.claim for seat in state.claims.values()]
    return {claim.replica: claim.shadow for claim in claims if claim.copies and claim.replica}


def gone(state: PoolState) -> list[str]:
    """Leases of replicas whose process has ended: it was a member of the gate of its device, and is none any more.

    That is known with the first reading after its end, long before it fails to renew.
    """
    found = []
    for lease_id, seat in state.claims.items():
        readings = state.gates.get(state.ledger.lease(lease_id).device)
        is_there = bool(readings) and seat.claim.pid in {slot.pid for slot in readings[-1].slots}
        if readings and seat.joined and not is_there:
            found.append(lease_id)
        seat.joined = seat.joined or is_there
    return found


def wanted_copies(claim: Claim, serving: int, held: int) -> int:
    """Copies that are to serve, as far as there are any.

    Args:
        serving: replicas that serve now. held: those and the shadows.
    """
    return min(max(serving, claim.copies), held)


def give_back(state: PoolState, holder: str) -> None:
    """A replica leaves; none of that name is no error."""
    for lease_id, claimed in list(state.claims.items()):
        if claimed.claim.holder == holder:
            del state.claims[lease_id]
            state.release(lease_id)


def _is_spare(state: PoolState, claim: Claim) -> bool:
    """Whether a new replica is one more than are to serve."""
    others = [seat.claim for seat in state.claims.values() if seat.claim.workload == claim.workload]
    return bool(claim.copies) and sum(not other.shadow for other in others) >= claim.copies


def _play(state: PoolState, lease_id: str, shadow: bool, now_s: float) -> None:
    seat = state.claims[lease_id]
    seat.claim, seat.since_s = replace(seat.claim, shadow=shadow), now_s


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
    def order(site: Site) -> tuple[bool, int, int, int, str]:
        device = site.device
        copies = state.ledger.leases(device=device.id, workload=claim.workload)
        serving = sum(not state.stands_by(lease.id) for lease in copies)
        return device.kind != claim.tier, serving, len(copies), -state.ledger.free(device.id)[0], device.id

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


def _grown(state: PoolState, lease_id: str) -> Lease:
    """Up to what the replica asked for, as far as there is room; a shadow asks for no share."""
    lease, claim = state.ledger.lease(lease_id), state.claims[lease_id].claim
    wanted = wanted_milli(claim, state.sites[lease.device]) if lease.device in state.sites else 0
    milli = min(wanted, lease.milli + state.ledger.free(lease.device)[0])
    if milli <= lease.milli:
        return lease
    return state.ledger.resize(lease.id, milli, lease.memory_bytes, state.ledger.epoch)


def _affordable(state: PoolState, claim: Claim, site: Site) -> tuple[int, int]:
    free_milli, free_bytes = state.ledger.free(site.device.id)
    return min(wanted_milli(claim, site), free_milli), min(claim.memory_bytes, free_bytes)


def wanted_milli(claim: Claim, site: Site) -> int:
    """Thousandths of the device that the stated thousandths of a core are; none for a shadow."""
    whole = min(CAPACITY_MILLI, math.ceil(claim.core_milli / max(1, len(site.device.cores))))
    return 0 if claim.shadow else whole
