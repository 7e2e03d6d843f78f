"""The autoscalers of a scenario: those that run live, with what the scenario says a replica can do."""

from __future__ import annotations

from configs.autoscale_settings import AutoscaleSettings, CapacityPoint, ScaledDeployment
from configs.forecast_settings import ForecastSettings
from configs.plan_settings import Tier
from pool.policy.autoscale.predictive import PredictiveAutoscaler
from pool.policy.autoscale.signals import Autoscaler
from pool.simulator.load_curves import load_curve
from pool.simulator.scenario import FORECAST_STEPS_S, Scenario, ServiceSettings


def autoscalers_of(scenario: Scenario) -> dict[str, Autoscaler]:
    """Of the services that state bounds.

    Raises:
        ConfigError: a service keeps its objective at no rate.
    """
    here = {shelf.kind for shelf in scenario.fleet}
    return {
        service.name: _autoscaler(service, next(kind for kind in service.tier if kind in here), scenario.interval_s)
        for service in scenario.services
        if service.autoscale is not None
    }


def _autoscaler(service: ServiceSettings, kind: Tier, interval_s: float) -> PredictiveAutoscaler:
    """Planned by what one replica alone does: several together do a little better."""
    bounds, profile = service.autoscale, service.profiles[kind]
    assert bounds is not None
    curve = load_curve(profile, service.max_batch_rows).service_curve(profile.start_s, service.overhead_ms)
    deployment = ScaledDeployment(
        min_replicas=bounds.min_replicas,
        max_replicas=bounds.max_replicas,
        start_s=curve.start_s,
        curve=tuple(CapacityPoint(rate_per_s=rate, p99_ms=p99_ms) for rate, p99_ms in curve.points),
    )
    settings = AutoscaleSettings(interval_s=interval_s, slo_ms=service.slo_ms, quantile=bounds.quantile)
    forecast = ForecastSettings(step_s=next(step for step in FORECAST_STEPS_S if step >= interval_s))
    return PredictiveAutoscaler(settings, deployment, forecast)
