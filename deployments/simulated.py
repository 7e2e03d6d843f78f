"""What ``recpool simulate`` runs and prints."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from configs.errors import ConfigError
from configs.settings import Settings
from deployments.console import aligned, complain
from deployments.simulated_door import live_doors
from pool.simulator.outcome import Outcome
from pool.simulator.reading import Loaded, read_scenario
from pool.simulator.simulation import Simulation

SCENARIOS = Path(__file__).resolve().parents[1] / "configs" / "scenarios"
SERVICE = ("service", "requests", "violations", "shed", "lost", "available", "p50 ms", "p99 ms", "replicas", "slice h")
WORK = ("work", "kind", "steps", "lost", "done", "slice h")


def run_scenario(name: str, settings: Settings, seed: int | None, mode: str | None) -> tuple[Outcome, Loaded]:
    """Simulate a scenario under the service's own admission; says on standard error what it took.

    Raises:
        ConfigError, DataError: as `read_scenario`; nothing has run then.
    """
    loaded = read_scenario(scenario_file(name)).with_changes(seed=seed, mode=mode)
    for repair in loaded.repairs:
        complain(repair)
    began_s = time.perf_counter()
    outcome = Simulation(loaded, make_door=live_doors(settings.overload)).run()
    complain(f"{outcome.seconds:g} s of {outcome.devices} devices took {time.perf_counter() - began_s:.1f} s")
    return outcome, loaded


def scenario_file(name: str) -> Path:
    """Raises ConfigError when there is none of that name."""
    file = Path(name) if name.endswith((".yaml", ".yml")) else SCENARIOS / f"{name}.yaml"
    if not file.is_file():
        known = sorted(path.stem for path in SCENARIOS.glob("*.yaml"))
        raise ConfigError(f"no scenario {name!r}; known scenarios: {known}, or give a path to a .yaml file")
    return file


def lines(outcome: Outcome, loaded: Loaded) -> Iterator[str]:
    """The result for a person."""
    how = "request by request" if outcome.mode == "requests" else f"by intervals of {loaded.scenario.interval_s:g} s"
    emulated = ", emulated" if outcome.emulated else ""
    yield f"{outcome.devices} devices{emulated} for {outcome.seconds:g} s, {how}, seed {loaded.scenario.seed}"
    rows: list[Sequence[Any]] = [
        (
            name, each.asked, each.violations, each.shed, each.lost, f"{each.availability:.4%}",
            each.p50_ms, each.p99_ms, each.replicas, each.slice_hours,
        )
        for name, each in outcome.services.items()
    ]  # fmt: skip
    yield from table(SERVICE, rows)
    if outcome.works:
        done = {name: f"{each.succeeded}/{each.copies}" for name, each in outcome.works.items()}
        yield from table(
            WORK,
            [
                (name, each.kind, each.steps, each.lost_steps, done[name], each.slice_hours)
                for name, each in outcome.works.items()
            ],
        )
    yield (
        f"used {outcome.utilisation:.1%} of the devices: {outcome.serving:.1%} by services, {outcome.working:.1%} by "
        f"other work; {outcome.device_hours:.6g} device hours for {outcome.price:.6g}"
    )
    yield f"{outcome.outages} outages, {outcome.preemptions} preemptions, {outcome.migrations} migrations"


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Rows of any values under their headings."""
    return aligned([columns, *([_cell(value) for value in row] for row in rows)])


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
