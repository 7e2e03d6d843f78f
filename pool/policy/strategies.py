"""Strategies: in which order the kinds of device are tried for a workload. One dict holds them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from configs.pool_settings import PlacementSettings
from pool.device import CAPACITY_MILLI, DeviceKind
from pool.policy.cost_model import Prediction
from pool.policy.latency import GraphCosts
from pool.workload import WorkloadSpec


@dataclass(frozen=True)
class Question:
    """What a strategy may look at. ``prices``: lowest an hour of a whole device, by kind."""

    spec: WorkloadSpec
    predictions: Mapping[DeviceKind, Prediction]
    costs: GraphCosts | None
    prices: Mapping[DeviceKind, float]
    settings: PlacementSettings


KindOrder = tuple[tuple[DeviceKind, ...], str]
"""The kinds of a workload's tiers, best first, and why."""


def tier_order(asked: Question) -> KindOrder:
    """As the owner wrote them."""
    return asked.spec.tier, "its tiers in their order"


def rule_of_thumb(asked: Question) -> KindOrder:
    """Lightweight with a small batch: NPU; a transformer with a large one: GPU; all else: CPU; then the tiers.

    The model is known by its graph, or by what its owner declares of it; of one that nothing is known of, the
    order of its tiers is the only thing there is.

    Source: the published rule; what is light, small and large is in `PlacementSettings`.
    """
    about, settings = asked.spec.attributes, asked.settings
    parameters = asked.costs.parameters if asked.costs else about.parameters
    has_attention = asked.costs.has_attention if asked.costs else about.transformer
    if parameters is None and has_attention is None:
        return tier_order(asked)
    rows = about.batch_rows
    first: DeviceKind
    if parameters is not None and parameters <= settings.light_parameters and rows <= settings.small_batch_rows:
        first, why = "npu", f"lightweight and {rows} rows a batch"
    elif has_attention and rows >= settings.large_batch_rows:
        first, why = "gpu", f"a transformer and {rows} rows a batch"
    else:
        first, why = "cpu", "neither light with a small batch nor a transformer with a large one"
    return tuple(sorted(asked.spec.tier, key=lambda kind: kind != first)), f"rule of thumb: {why}"


def measured(asked: Question) -> KindOrder:
    """The cheapest slice that keeps the SLO, by price times share needed; of equal price the smaller, then faster.

    Kinds without a prediction come last, by the rule of thumb; when none has one, the rule decides.
    """
    known: dict[DeviceKind, Prediction] = {
        kind: asked.predictions[kind] for kind in asked.spec.tier if kind in asked.predictions
    }
    if not known:
        return rule_of_thumb(asked)

    def cost(kind: DeviceKind) -> tuple[bool, float, int, float]:
        share = known[kind].share_milli
        return share > CAPACITY_MILLI, asked.prices.get(kind, 0.0) * share, share, known[kind].latency_ms

    best: list[DeviceKind] = sorted(known, key=cost)
    rest: list[DeviceKind] = [kind for kind in rule_of_thumb(asked)[0] if kind not in known]
    needs = ", ".join(f"{kind} {known[kind].share_milli} by {known[kind].source}" for kind in best)
    return (*best, *rest), f"predicted share in milli, cheapest first: {needs}"


STRATEGIES: dict[str, Callable[[Question], KindOrder]] = {
    "measured": measured,
    "rule_of_thumb": rule_of_thumb,
    "tier_order": tier_order,
}
