"""First calls are held against the steady state, each kind of shadow by itself."""

from __future__ import annotations

import pytest

from benchmarks.shadow import COLD, WARM, Trial, summed_up
from benchmarks.shadow_app import unwarmed
from configs.settings import build_settings


def test_ratios_are_medians_and_worst_of_their_kind_over_the_steady_p50():
    trials = [
        Trial(kind, promoted, first, [5.0, 7.0])
        for kind, promoted, first in [(WARM, 200, 8.0), (COLD, 300, 80.0), (WARM, 100, 5.0), (WARM, 400, 6.0)]
    ]
    found = summed_up(trials, [4.0, 5.0, 3.0])
    assert (found["warm_first_median_ratio"], found["warm_first_worst_ratio"]) == (1.5, 2.0)
    assert found["cold_first_median_ratio"] == pytest.approx(20.0)
    assert (found["promoted_p50_ms"], found["promoted_max_ms"]) == (250, 400)
    assert found["warm_first_ms"] == [8.0, 5.0, 6.0]


def test_a_cold_arm_differs_in_the_warm_up_alone():
    settings = build_settings({})
    cold = unwarmed(settings)
    assert (settings.plan.gateway.warm, cold.plan.gateway.warm) == (True, False)
    assert cold.model_dump(exclude={"plan"}) == settings.model_dump(exclude={"plan"})
    assert cold.plan.stages == settings.plan.stages
