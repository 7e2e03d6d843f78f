"""A scenario from its file, with the profiles and traces it names; what is wrong is refused before anything runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import yaml
from pydantic import ValidationError

from configs.errors import ConfigError, DataError
from configs.wrong_settings import wrong_settings
from pool.simulator.demand import Demand
from pool.simulator.scenario import DemandSettings, Scenario
from pool.traces import binned, read_arrivals, read_counts

ARRIVALS_STEP_S = 5.0
"""Steps by which the rate of single arrivals is told to whoever asks for rates."""
FILE = "file"


@dataclass(frozen=True)
class Loaded:
    """A scenario and what belongs to it.

    Attributes:
        demands: by service.
        begins_s: seconds since 1970 UTC at which virtual time is 0.
        repairs: what was repaired in traces, for people.
    """

    scenario: Scenario
    demands: dict[str, Demand]
    begins_s: float
    repairs: tuple[str, ...] = ()

    def with_changes(self, seed: int | None = None, mode: str | None = None) -> Loaded:
        """Another seed, another way to simulate requests; what is None stays.

        Raises:
            ConfigError: one of them is wrong.
        """
        stated = {name: value for name, value in (("seed", seed), ("mode", mode)) if value is not None}
        try:
            checked = Scenario.model_validate(self.scenario.model_dump() | stated)
        except ValidationError as error:
            raise ConfigError(f"scenario: {wrong_settings(error, Scenario)}") from error
        return replace(self, scenario=checked)


def read_scenario(file: Path) -> Loaded:
    """Read a YAML file. Paths in it are relative to its folder.

    Raises:
        ConfigError: the file, or a setting in it, is wrong or missing; names each.
        DataError: a trace is wrong beyond repair, or too short; names file and row.
    """
    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror or error})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid YAML ({error})") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{file}: a scenario is a mapping of settings, found {type(tree).__name__}")
    return load(tree, file.parent, str(file))


def load(tree: dict[str, Any], folder: Path = Path(), origin: str = "scenario") -> Loaded:
    """As `read_scenario`, from plain values.

    Args:
        folder: that paths are relative to.
        origin: for messages.
    """
    try:
        scenario = Scenario.model_validate(_with_profiles(tree, folder, origin))
    except ValidationError as error:
        raise ConfigError(f"{origin}: {wrong_settings(error, Scenario)}") from error
    demands, starts_s, repairs = {}, [], []
    for at, service in enumerate(scenario.services):
        where = f"{origin}: services.{at}.demand"
        demand, start_s, mended = _demand(service.demand, folder, scenario.duration_s, where)
        demands[service.name] = demand
        starts_s += [] if start_s is None else [start_s]
        repairs += [f"{service.name}: {each}" for each in mended]
    begins = scenario.begins or datetime.fromtimestamp(starts_s[0] if starts_s else 0.0, UTC)
    return Loaded(scenario, demands, begins.timestamp(), tuple(repairs))


def _with_profiles(tree: dict[str, Any], folder: Path, origin: str) -> dict[str, Any]:
    """The tree with profiles read from the files that stand in their place; what is no mapping is left as it is."""
    services = tree.get("services")
    if not isinstance(services, list):
        return tree
    return tree | {"services": [_with_files(each, at, folder, origin) for at, each in enumerate(services)]}


def _with_files(service: Any, at: int, folder: Path, origin: str) -> Any:
    profiles = service.get("profiles") if isinstance(service, dict) else None
    if not isinstance(profiles, dict):
        return service
    read = dict(profiles)
    for kind, profile in profiles.items():
        if isinstance(profile, dict) and FILE in profile:
            stated = {name: value for name, value in profile.items() if name != FILE}
            where = f"{origin}: services.{at}.profiles.{kind}.{FILE}"
            read[kind] = _profile(folder / str(profile[FILE]), where) | stated
    return service | {"profiles": read}


def _profile(file: Path, where: str) -> dict[str, Any]:
    try:
        found = orjson.loads(file.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise ConfigError(f"{where}: {file} is no readable profile ({error}); measure again") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{where}: {file} holds no profile but a {type(found).__name__}; measure again")
    return found


def _demand(
    stated: DemandSettings, folder: Path, duration_s: float, where: str
) -> tuple[Demand, float | None, tuple[str, ...]]:
    """The demand, when its trace begins in seconds since 1970, and what was repaired."""
    if stated.rate_per_s is not None:
        return Demand.constant(stated.rate_per_s), None, ()
    if stated.points is not None:
        at_s, per_s = np.array(stated.points, np.float64).T
        return Demand(at_s, per_s), None, ()
    if stated.arrivals is not None:
        times_s, repairs = read_arrivals(folder / stated.arrivals, stated.time)
        begins_s = float(times_s[0]) + stated.skip_s
        arrivals_s = (times_s[times_s >= begins_s] - begins_s) / stated.speed
        last_s = float(arrivals_s[-1]) if len(arrivals_s) else 0.0
        _require(last_s, duration_s, f"{where}.arrivals", str(stated.arrivals))
        trace = binned(arrivals_s, ARRIVALS_STEP_S)
        return (
            Demand(trace.times_s + ARRIVALS_STEP_S / 2, trace.counts / ARRIVALS_STEP_S, arrivals_s),
            begins_s,
            repairs,
        )
    assert stated.trace is not None
    trace = read_counts(folder / stated.trace, stated.time, stated.count)
    at_s = (trace.times_s - trace.start_s + trace.step_s / 2 - stated.skip_s) / stated.speed
    step_s = trace.step_s / stated.speed
    _require(float(at_s[-1]) + step_s / 2, duration_s, f"{where}.trace", str(stated.trace))
    per_s = _scaled(trace.counts / step_s, at_s, step_s, duration_s, stated, where)
    return Demand(at_s, per_s), trace.start_s + stated.skip_s, trace.repairs


def _scaled(
    per_s: np.ndarray, at_s: np.ndarray, step_s: float, duration_s: float, stated: DemandSettings, where: str
) -> np.ndarray:
    played = per_s[(at_s > -step_s) & (at_s < duration_s + step_s)]
    if stated.mean_per_s is None and stated.peak_per_s is None:
        return per_s
    now = played.mean() if stated.mean_per_s is not None else played.max()
    if now <= 0:
        raise DataError(f"{where}.trace: {stated.trace} counts nothing in what is played; it cannot be scaled")
    return per_s * ((stated.mean_per_s or stated.peak_per_s or 0.0) / now)


def _require(there_s: float, wanted_s: float, where: str, name: str) -> None:
    if there_s + 1e-6 < wanted_s:
        raise DataError(
            f"{where}: {name} covers {there_s:g} s of the {wanted_s:g} s that are simulated; "
            f"lower duration_s, skip_s or speed, or take a longer trace"
        )
