"""How Hypothesis searches: the same examples in every run, and no clock decides.

`pytest --hypothesis-profile search` looks for new counterexamples.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("suite", COMMON, derandomize=True, database=None, max_examples=25)
settings.register_profile("search", COMMON, max_examples=1_000)
settings.load_profile("suite")
