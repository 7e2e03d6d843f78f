"""``recpool simulate``: a pool in virtual time, under the planner that runs live."""

from __future__ import annotations

from typing import Annotated

import typer

from configs.settings import load_settings
from deployments.console import show
from deployments.options import AsJson, Profile


def simulate(
    scenario: Annotated[str, typer.Argument(help="scenario below configs/scenarios, or path of a .yaml file")],
    seed: Annotated[int | None, typer.Option(min=0, help="instead of the scenario's")] = None,
    mode: Annotated[str | None, typer.Option(help="requests, intervals or auto, instead of the scenario's")] = None,
    profile: Profile = "default",
    as_json: AsJson = False,
) -> None:
    """Simulate devices, services, other work and failures; the same scenario and seed give the same result."""
    from deployments.simulated import lines, run_scenario  # compiled loops take seconds to import

    outcome, loaded = run_scenario(scenario, load_settings(profile), seed, mode)
    show(outcome.as_dict(), lines(outcome, loaded), as_json)
