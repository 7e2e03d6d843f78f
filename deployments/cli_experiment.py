"""``recpool experiment``: which settings share the traffic, and what that shows."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
import yaml
from pydantic import ValidationError

from configs.errors import ConfigError, NotFound, Unavailable
from configs.settings import Settings
from deployments.console import show
from deployments.options import AsJson, DatasetName, Profile, resolve
from deployments.releases.served import Served
from features.event_log import open_event_log
from pool.repository import open_releases
from serving.experiments.report import ROLLOUT, ArmReport, Metric, all_events, report
from serving.experiments.spec import Experiment, Traffic, arm_settings

experiment = typer.Typer(no_args_is_help=True, help="Divide the traffic between settings, and see what that shows.")


@experiment.command("report")
def report_experiment(
    name: Annotated[str, typer.Argument(help=f"of the experiment, or `{ROLLOUT}` for champion and challenger")],
    against: Annotated[
        str | None, typer.Option(help="arm to compare with; absent: the champion, or the first by name")
    ] = (None),
    profile: Profile = "default",
    dataset: DatasetName = None,
    as_json: AsJson = False,
) -> None:
    """Metrics of each arm with 95% confidence intervals, and how it differs from the first arm."""
    settings, _ = resolve(profile, dataset)
    log = open_event_log(settings)
    try:
        arms = report(all_events(log), name, *([against] if against else []))
    finally:
        log.close()
    if not arms:
        raise NotFound(f"nobody has taken part in {name!r:.80} yet; experiments are part of user_config")
    show({arm: asdict(each) for arm, each in arms.items()}, lines(arms), as_json)


@experiment.command("apply")
def apply_experiments(
    file: Annotated[Path, typer.Argument(help="YAML: a list of experiments; an empty list ends all of them")],
    profile: Profile = "default",
    dataset: DatasetName = None,
    as_json: AsJson = False,
) -> None:
    """Let the running service carry out these experiments, and no others; nothing is restarted."""
    settings, _ = resolve(profile, dataset)
    wanted = read_experiments(file, settings)
    served = Served.find(settings)
    if served is None:
        raise Unavailable(f"no service runs in {settings.home}; run `recpool up`")
    choice = served.choice()
    version = choice.get("version") or open_releases(settings).champion()
    traffic = {**(choice.get("traffic") or {}), "experiments": [each.model_dump(mode="json") for each in wanted]}
    served.choose({**choice, "version": version, "traffic": traffic})
    show(traffic["experiments"], [f"{each.name}  {_arms(each)}" for each in wanted] or ["no experiments"], as_json)


@experiment.command("list")
def list_experiments(profile: Profile = "default", dataset: DatasetName = None, as_json: AsJson = False) -> None:
    """What the running service carries out."""
    settings, _ = resolve(profile, dataset)
    served = Served.find(settings)
    found = Traffic.model_validate((served.choice().get("traffic") or {}) if served else {}).experiments
    told = [f"{each.name}  {_arms(each)}" for each in found]
    show([each.model_dump(mode="json") for each in found], told or ["no experiments"], as_json)


def read_experiments(file: Path, settings: Settings) -> tuple[Experiment, ...]:
    """The experiments of a file. Raises ConfigError naming the field that is wrong."""
    try:
        raw = yaml.safe_load(file.read_text(encoding="utf-8"))
        found = Traffic.model_validate({"experiments": raw or []}).experiments
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{file}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{file}: not a readable list of experiments ({error})") from error
    for each in found:
        for arm in each.arms:
            arm_settings(settings, each, arm)
    return found


def _arms(each: Experiment) -> str:
    scenes = f"  in {', '.join(each.scenes)}" if each.scenes else ""
    return ", ".join(f"{arm.name} {arm.share:.0%}" for arm in each.arms) + scenes


def lines(arms: dict[str, ArmReport]) -> list[str]:
    """The report for people; a star marks a difference that is none of chance."""
    told = []
    for arm, each in arms.items():
        told.append(f"{arm}  {each.users:,} users  {each.slates:,} slates")
        told += [f"  {name:<18} {_said(metric)}" for name, metric in each.metrics.items() if metric.value is not None]
    return told


def _said(metric: Metric) -> str:
    said = f"{metric.value:.4g}"
    if metric.low is not None:
        said += f"  [{metric.low:.4g}, {metric.high:.4g}]"
    if metric.difference is not None:
        said += f"  {metric.difference:+.4g} [{metric.difference_low:+.4g}, {metric.difference_high:+.4g}]"
    return said + (" *" if metric.is_sure else "")
