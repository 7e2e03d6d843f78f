"""Live shares of one device: weights follow the latency of its workloads and what they want.

A weight is never below the lease, and all together never above the device. On top of the leases,

    1. a workload with an SLO gets what its claim says: the claim grows while its p99 is near or above the
       SLO, shrinks slowly while it is far below, and stays in between
    2. what is left goes to the others that want it, in proportion to their leases, up to what they can use

Nobody's want is forgotten at once, claims dwell between two steps, and weights change only by what is worth
writing, so that a constant load has constant shares.

This runs for every lease of the pool at every tick, thousands of times a second; hence the plain tuples and loops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from configs.pool_settings import ShareSettings
from pool.device import CAPACITY_MILLI
from pool.workload import RANK, WorkloadPriority


class SliceView(NamedTuple):
    """A lease as the gate and the meters show it.

    Attributes:
        min_milli: the lease.
        wanted_milli: it can use when it is free.
        weight_milli: it has in the gate now.
        metered_milli: of device time it used lately.
        wants: it waits for the device or uses it.
        p99_ms: measured lately; None when nothing was served.
    """

    lease: str
    workload: str
    rank: WorkloadPriority
    min_milli: int
    wanted_milli: int
    weight_milli: int
    metered_milli: int = 0
    wants: bool = True
    p99_ms: float | None = None
    slo_ms: float | None = None

    @property
    def pressure(self) -> float | None:
        """p99 over SLO; None for work that has no SLO or served nothing."""
        return None if self.slo_ms is None or self.p99_ms is None else self.p99_ms / self.slo_ms


class Claim(NamedTuple):
    """What is remembered of a slice: its claim, when that changed, and when it last wanted anything."""

    milli: int
    changed_s: float
    wanted_s: float


@dataclass(frozen=True)
class DeviceShares:
    """What is remembered of a device: the claims by lease."""

    claims: Mapping[str, Claim] = field(default_factory=dict)


@dataclass(frozen=True)
class SharesDecision:
    """New weights by lease, in the order of the slices.

    Attributes:
        weights: None when the present ones may stay.
        short: leases whose p99 is above the SLO though they have all that the device can give them.
    """

    weights: tuple[tuple[str, int], ...] | None
    reason: str
    short: tuple[str, ...] = ()


AS_IT_IS = SharesDecision(None, "")
REST = len(RANK)


def share_device(
    slices: Sequence[SliceView], state: DeviceShares, now_s: float, settings: ShareSettings
) -> tuple[SharesDecision, DeviceShares]:
    """Decide the weights of one device.

    Args:
        slices: every lease on it; their minima sum to at most 1000.
    """
    assert sum([each.min_milli for each in slices]) <= CAPACITY_MILLI, f"leased more than a device: {slices}"
    before = state.claims
    claims = {each.lease: _claim(each, before.get(each.lease), now_s, settings) for each in slices}
    weights = allot(slices, {lease: claim.milli for lease, claim in claims.items()})
    is_over = sum([each.weight_milli for each in slices]) > CAPACITY_MILLI
    least_milli = settings.least_change_milli
    changes, late = [], []
    for each in slices:
        weight = weights[each.lease]
        if weight != each.weight_milli and _is_worth_writing(each, weight, is_over, least_milli):
            changes.append((each, weight))
        if each.p99_ms is not None and _is_short(each, claims[each.lease], weight):
            late.append(each.lease)
    short = tuple(late)
    if not changes:
        return (SharesDecision(None, "", short) if short else AS_IT_IS), DeviceShares(claims)
    reason = "; ".join(_reason(each, weight) for each, weight in changes)
    written = tuple((each.lease, weights[each.lease]) for each in slices)
    return SharesDecision(written, reason, short), DeviceShares(claims)


def allot(slices: Sequence[SliceView], claims: Mapping[str, int]) -> dict[str, int]:
    """Weights that keep every lease, then meet the claims of work with an SLO by priority, then those of the rest."""
    weights = {each.lease: each.min_milli for each in slices}
    left = CAPACITY_MILLI - sum(weights.values())
    if not left:
        return weights
    groups: tuple[list[SliceView], ...] = ([], [], [], [])  # with an SLO by priority, then the rest
    for each in slices:
        if claims[each.lease] > each.min_milli:  # others get no more than their lease
            groups[REST if each.slo_ms is None else RANK[each.rank]].append(each)
    for group in groups:
        if not group or not left:
            continue
        room = [claims[each.lease] - each.min_milli for each in group]
        for each, extra in zip(group, share_out(left, [each.min_milli for each in group], room), strict=True):
            weights[each.lease] += extra
            left -= extra
    return weights


def share_out(amount: int, weights: Sequence[int], caps: Sequence[int]) -> list[int]:
    """Divide whole units by weight, none above its cap; what a full one leaves goes to the others (max-min fair).

    Args:
        weights: above 0, shape [N]; a weight of 0 gets nothing.
        caps: shape [N].
    """
    shares = [0] * len(caps)
    filling = sorted((n for n in range(len(caps)) if weights[n] > 0), key=lambda n: (caps[n] / weights[n], n))
    total = sum(weights[n] for n in filling)
    for n in filling:  # from the one that is full first
        shares[n] = min(caps[n], amount * weights[n] // total)
        amount, total = amount - shares[n], total - weights[n]
    for n in filling:  # rounding leaves at most one unit for each
        extra = min(amount, caps[n] - shares[n], 1)
        shares[n], amount = shares[n] + extra, amount - extra
    return shares


def _claim(each: SliceView, before: Claim | None, now_s: float, settings: ShareSettings) -> Claim:
    """The claim of a slice now; what is new begins at its weight."""
    ceiling = each.wanted_milli if each.wanted_milli > each.min_milli else each.min_milli
    if before is None:
        before = Claim(min(ceiling, max(each.min_milli, each.weight_milli)), now_s, now_s)
    wanted_s = now_s if each.wants else before.wanted_s
    if each.slo_ms is None:
        idle = now_s - wanted_s > settings.idle_after_s
        return Claim(each.min_milli if idle else ceiling, before.changed_s, wanted_s)
    milli = _stepped(each, before, now_s, settings)
    milli = each.min_milli if milli < each.min_milli else ceiling if milli > ceiling else milli
    return Claim(milli, now_s if milli != before.milli else before.changed_s, wanted_s)


def _stepped(each: SliceView, before: Claim, now_s: float, settings: ShareSettings) -> int:
    """The claim of work with an SLO, a step up, a step down, or as it was.

    What serves nothing steps down; none steps below what it was metered to use.
    """
    dwelt_s, pressure = now_s - before.changed_s, each.pressure
    if pressure is not None and pressure > settings.grow_above:
        return before.milli + (settings.step_milli if dwelt_s >= settings.grow_dwell_s else 0)
    if (pressure or 0.0) < settings.shrink_below and dwelt_s >= settings.shrink_dwell_s:
        used = min(before.milli, each.metered_milli)
        return max(used, before.milli - max(1, settings.step_milli // 2))
    return before.milli


def _is_short(each: SliceView, claim: Claim, weight: int) -> bool:
    at_ceiling = claim.milli >= each.wanted_milli or weight < claim.milli
    return each.pressure is not None and each.pressure > 1 and at_ceiling


def _is_worth_writing(each: SliceView, weight: int, is_over: bool, least_milli: int) -> bool:
    """A change is, when it is large enough, or when what stands breaks a lease or the device."""
    return is_over or each.weight_milli < each.min_milli or abs(weight - each.weight_milli) >= least_milli


def _reason(each: SliceView, weight: int) -> str:
    if each.pressure is not None:
        why = f"p99 at {each.pressure:.0%} of its SLO"
    else:
        why = "wants more" if each.wants else "idle"
    return f"{each.workload} {each.weight_milli} to {weight}: {why}"
