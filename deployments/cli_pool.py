"""``recpool pool``: what shares the devices, asked of the running service; and changes to it."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from configs.errors import ConfigError, RecpoolError
from configs.settings import Settings, load_settings
from deployments import pool_ask, pool_top
from deployments.autoscaling import ScaleReport
from deployments.console import flat_lines, show
from deployments.cost_view import cost_lines
from deployments.options import AsJson, Profile
from deployments.pool_rules import PREFIX
from deployments.scale_routes import SCALING
from pool.policy.cost_summary import CostSummary
from pool.views import PoolReport, WorkloadReport

pool = typer.Typer(no_args_is_help=True, help="Look at the devices and at what shares them, and change it.")

Name = Annotated[str, typer.Argument(help="of a workload, as `recpool pool status` lists it")]
Why = Annotated[str, typer.Option(help="why; it stands beside the decision in every view")]
BY_HAND = "asked for on the command line"


@pool.command()
def submit(
    kind: Annotated[str, typer.Argument(help="inference, warmup, evaluate or finetune")],
    name: Annotated[str, typer.Option(help="unique in the pool")],
    model: Annotated[str, typer.Option(help="what it computes: recall, coarse, fine, or any model")],
    version: Annotated[str | None, typer.Option(help="of the model; absent: the champion")] = None,
    priority: Annotated[str | None, typer.Option(help="guaranteed, burstable or best_effort; absent: by kind")] = None,
    min_milli: Annotated[int | None, typer.Option(help="thousandths of a device it is sure of")] = None,
    desired_milli: Annotated[int | None, typer.Option(help="thousandths it can use when some are free")] = None,
    memory_bytes: Annotated[int | None, typer.Option(help="of the device's memory, held with the lease")] = None,
    slo_ms: Annotated[float | None, typer.Option(help="latency its p99 must stay below")] = None,
    tier: Annotated[list[str] | None, typer.Option(help="cpu, gpu or npu; repeat, wanted first")] = None,
    replicas: Annotated[int | None, typer.Option(help="copies, which avoid each other's devices")] = None,
    team: Annotated[str | None, typer.Option(help="who pays")] = None,
    attribute: Annotated[list[str] | None, typer.Option(help="NAME=VALUE such as precision=int8; repeat")] = None,
    option: Annotated[list[str] | None, typer.Option(help="NAME=VALUE for the work itself; repeat")] = None,
    profile: Profile = "default",
    as_json: AsJson = False,
) -> None:
    """Declare a workload; it is queued, and placed when there is room."""
    stated = {"kind": kind, "name": name, "model": model, "version": version, "priority": priority}
    stated |= {"min_milli": min_milli, "desired_milli": desired_milli, "memory_bytes": memory_bytes, "slo_ms": slo_ms}
    stated |= {"tier": tier or None, "replicas": replicas, "team": team}
    stated |= {"attributes": _pairs("attribute", attribute), "options": _pairs("option", option)}
    body = {field: value for field, value in stated.items() if value is not None}
    _change(profile, pool_ask.WORKLOADS, body, as_json)


@pool.command()
def status(
    name: Annotated[str | None, typer.Argument(help="of one workload; absent: all")] = None,
    profile: Profile = "default",
    as_json: AsJson = False,
) -> None:
    """Workloads, where they stand, and why."""
    settings = load_settings(profile)
    if name is None:
        document = pool_ask.look(settings, pool_ask.WORKLOADS)["workloads"]
        found = pool_ask.parsed(tuple[WorkloadReport, ...], document)
        rows = [pool_top.clean(pool_top.workload_line(each)) for each in found]
        show(document, rows or ["no workload; submit one with `recpool pool submit`"], as_json)
        return
    document = pool_ask.look(settings, pool_ask.workload_path(name))
    show(document, _details(pool_ask.parsed(WorkloadReport, document)), as_json)


@pool.command()
def preempt(name: Name, reason: Why = BY_HAND, profile: Profile = "default", as_json: AsJson = False) -> None:
    """Let a workload checkpoint and give its slice away; it keeps its place in the queue."""
    _change(profile, pool_ask.workload_path(name, "preempt"), {"reason": reason}, as_json)


@pool.command()
def resume(name: Name, profile: Profile = "default", as_json: AsJson = False) -> None:
    """Let a workload that was preempted, parked or failed go on."""
    _change(profile, pool_ask.workload_path(name, "resume"), {}, as_json)


@pool.command()
def cancel(name: Name, reason: Why = BY_HAND, profile: Profile = "default", as_json: AsJson = False) -> None:
    """End a workload for good."""
    _change(profile, pool_ask.workload_path(name, "cancel"), {"reason": reason}, as_json)


@pool.command()
def migrate(
    name: Name,
    device: Annotated[str, typer.Argument(help="id of a device, as `recpool pool top` shows it")],
    profile: Profile = "default",
    as_json: AsJson = False,
) -> None:
    """Move a workload to another device, by its checkpoint."""
    _change(profile, pool_ask.workload_path(name, "migrate"), {"device": device}, as_json)


@pool.command()
def cost(profile: Profile = "default", as_json: AsJson = False) -> None:
    """What the month costs: by workload, model, scene and team, and what the pool saved against dedicated devices."""
    document = pool_ask.look(load_settings(profile), f"{PREFIX}/cost")
    rows = cost_lines(pool_ask.parsed(CostSummary, document))
    show(document, [pool_top.clean(row) for row in rows], as_json)


@pool.command()
def scaling(profile: Profile = "default", as_json: AsJson = False) -> None:
    """How many replicas the autoscaler wants of each deployment it drives, and why."""
    document = pool_ask.look(load_settings(profile), SCALING)
    found = pool_ask.parsed(tuple[ScaleReport, ...], document["deployments"])
    rows = [
        f"{each.deployment}: {each.replicas} replicas ({each.running} run, {each.starting} start) for "
        f"{each.arriving_per_s:.1f}/s, {each.queued:.0f} wait: {'; '.join(each.reasons)}"
        for each in found
    ]
    show(document, [pool_top.clean(row) for row in rows] or ["nothing was decided yet"], as_json)


@pool.command()
def top(
    once: Annotated[bool, typer.Option("--once", help="one picture, also on a terminal")] = False,
    interval: Annotated[float, typer.Option(min=0.2, max=3_600, help="seconds between two pictures")] = 1.0,
    profile: Profile = "default",
    as_json: AsJson = False,
) -> None:
    """Devices, slices and the last decisions, live on a terminal until interrupted; elsewhere one picture as lines."""
    settings, console = load_settings(profile), Console()
    document = pool_ask.look(settings, PREFIX)
    report = pool_ask.parsed(PoolReport, document)
    if as_json or once or not console.is_terminal:
        show(document, pool_top.lines(report), as_json)
        return
    watch(settings, console, interval, report)


def watch(settings: Settings, console: Console, interval_s: float, report: PoolReport) -> None:
    """Show the pool until interrupted, beginning with ``report``."""
    with Live(pool_top.picture(report, console.width), console=console, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(interval_s)
                live.update(_next_picture(settings, console.width), refresh=True)
        except KeyboardInterrupt:
            return


def _next_picture(settings: Settings, width: int) -> RenderableType:
    """The pool now, or why it cannot be seen: a service that starts again is no reason to look away."""
    try:
        document = pool_ask.look(settings, PREFIX)
        return pool_top.picture(pool_ask.parsed(PoolReport, document), width)
    except RecpoolError as error:
        return Text(pool_top.clean(error.message), style="red")


def _change(profile: str, path: str, body: dict[str, Any], as_json: bool) -> None:
    document = pool_ask.change(load_settings(profile), path, body)
    line = pool_top.workload_line(pool_ask.parsed(WorkloadReport, document))
    show(document, [pool_top.clean(line)], as_json)


def _details(found: WorkloadReport) -> list[str]:
    """One workload: its line, then what was declared and what came out, a line for each field."""
    stated = {name: value for name, value in found.spec.items() if value not in (None, "", {})}
    rows = [pool_top.workload_line(found), *flat_lines(stated)]
    rows += flat_lines(found.result, "result") if found.result else []
    rows += pool_top.cost_lines(found)
    return [pool_top.clean(row) for row in rows]


def _pairs(option: str, words: list[str] | None) -> dict[str, Any] | None:
    """``NAME=VALUE`` words as a mapping, values as JSON where they are JSON, else as text; None for no words."""
    if not words:
        return None
    pairs: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise ConfigError(f"--{option} {word!r}: write it as NAME=VALUE")
        pairs[name] = _value(value)
    return pairs


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=str)  # orjson would make a float of a huge integer
    except (ValueError, RecursionError):
        return text
