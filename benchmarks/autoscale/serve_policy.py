"""Ray Serve's default autoscaling, by its own functions: the policy, and the factors and delays that Serve adds."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from ray.serve import autoscaling_policy
from ray.serve._private.common import DeploymentID
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from benchmarks.autoscale.world import Seen


class ServePolicy:
    """As Serve's controller calls it: requests under way averaged over the look-back, a decision every interval.

    Its functions read the time from a module, in whose place the simulated time is put while they run.

    Args:
        target: requests under way for one replica (``target_ongoing_requests``).
        up_s, down_s: ``upscale_delay_s`` and ``downscale_delay_s``.
        gain: ``upscaling_factor``; below 1 what a short queue asks for is not ordered at once.
    """

    def __init__(self, most: int, target: float, up_s: float, down_s: float, look_back_s: float, gain: float = 1.0):
        self._config = AutoscalingConfig(
            min_replicas=1,
            max_replicas=most,
            target_ongoing_requests=target,
            upscale_delay_s=up_s,
            downscale_delay_s=down_s,
            look_back_period_s=look_back_s,
            upscaling_factor=gain,
        )
        self._policy = autoscaling_policy._apply_autoscaling_config(
            autoscaling_policy.replica_queue_length_autoscaling_policy
        )
        self._ongoing: deque[tuple[float, float]] = deque()
        self._state: dict[str, Any] = {}

    def decide(self, seen: Seen) -> int:
        at_s = seen.signals.at_s
        self._ongoing.append((at_s, seen.ongoing))
        while self._ongoing[0][0] <= at_s - max(self._config.look_back_period_s, seen.signals.interval_s):
            self._ongoing.popleft()
        ongoing = sum(each for _, each in self._ongoing) / len(self._ongoing)
        context = self._context(seen, ongoing)
        with patch.object(autoscaling_policy, "time", SimpleNamespace(time=lambda: at_s)):
            replicas, self._state = self._policy(context)
        return min(self._config.max_replicas, max(self._config.min_replicas, int(replicas)))

    def _context(self, seen: Seen, ongoing: float) -> AutoscalingContext:
        signals = seen.signals
        return AutoscalingContext(
            deployment_id=DeploymentID("gateway", "recpool"),
            deployment_name="gateway",
            app_name="recpool",
            current_num_replicas=signals.running,
            target_num_replicas=signals.running + signals.starting,
            running_replicas=[],
            total_num_requests=ongoing,
            total_queued_requests=signals.queued,
            aggregated_metrics=None,
            raw_metrics=None,
            capacity_adjusted_min_replicas=self._config.min_replicas,
            capacity_adjusted_max_replicas=self._config.max_replicas,
            policy_state=self._state,
            last_scale_up_time=None,
            last_scale_down_time=None,
            current_time=signals.at_s,
            config=self._config,
        )
