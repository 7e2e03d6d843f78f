"""``recpool release rollout``: let a release come to serve step by step, and watch it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from configs.errors import ConfigError, RecpoolError
from configs.settings import load_settings
from deployments import pool_ask
from deployments.console import show
from deployments.options import AsJson, Profile
from deployments.releases.views import ROLLOUT
from serving.experiments.rollout import RolloutPlan

POLL_S = 1.0
PATIENCE_S = 60.0
"""How long a service that does not answer is asked again: the rollout goes on without this command."""


def rollout(
    version: Annotated[str, typer.Argument(help="of a release, as `recpool release list` has it")],
    begin_with: Annotated[
        str, typer.Option(help="gate, warmup, shadow, canary or promote: leave out what is before")
    ] = ("gate"),
    shadow_share: Annotated[float | None, typer.Option(help="of the requests, copied to the release")] = None,
    canary: Annotated[str | None, typer.Option(help="shares of the users, such as 0.01,0.1,0.5")] = None,
    hold_s: Annotated[float | None, typer.Option(help="seconds that each step is watched at least")] = None,
    least_requests: Annotated[int | None, typer.Option(help="answers of the release that each step needs")] = None,
    patience_s: Annotated[float | None, typer.Option(help="after which too few answers end the rollout")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="return when it has begun")] = False,
    profile: Profile = "default",
    as_json: AsJson = False,
) -> None:
    """Evaluate a release, warm it up, let it stand in the shadow, give it more and more users, and promote it.

    Whatever it does worse than the champion gives all traffic back, by itself. It goes on when this command is
    interrupted. Exits with 0 when the release was promoted, else with 1.
    """
    stated = {"version": version, "begin_with": begin_with, "shadow_share": shadow_share, "canary": _shares(canary)}
    stated |= {"hold_s": hold_s, "least_requests": least_requests, "patience_s": patience_s}
    plan = _checked({name: value for name, value in stated.items() if value is not None})
    settings = load_settings(profile)
    view = pool_ask.change(settings, ROLLOUT, plan.model_dump(mode="json"))
    told = 0
    for view in () if detach else followed(settings):
        for line in () if as_json else view["told"][told:]:
            typer.echo(line)
        told = len(view["told"])
    show(view, [f"release {version} has begun; see `recpool release rollout-status`"] if detach else [], as_json)
    if not detach and view["phase"] != "promoted":
        raise typer.Exit(1)


def rollout_status(profile: Profile = "default", as_json: AsJson = False) -> None:
    """Where the rollout stands that is under way, or how the last one ended."""
    view = pool_ask.look(load_settings(profile), ROLLOUT)
    show(view, lines(view), as_json)


def cancel_rollout(
    reason: Annotated[
        str, typer.Option(help="why; it is kept in the release's history")
    ] = "asked for on the command line",
    profile: Profile = "default",
    as_json: AsJson = False,
) -> None:
    """Give all traffic back to the champion."""
    view = pool_ask.change(load_settings(profile), f"{ROLLOUT}/cancel", {"reason": reason})
    show(view, ["cancelled"], as_json)


def lines(view: Mapping[str, Any]) -> list[str]:
    """A rollout for people."""
    if view["phase"] == "none":
        return ["no rollout since the service came up; `recpool release history` has those before"]
    share = f" at {view['share']:.1%}" if view["share"] is not None else ""
    phase = view["phase"].replace("_", " ")
    told = [f"release {view['version']} beside {view['champion']}: {phase}{share}  {view['reason']}"]
    for role, seen in view["seen"].items():
        figures = "  ".join(f"{name} {value:g}" for name, value in seen.items() if value)
        told.append(f"  {role:<10}  {figures}")
    return told


def followed(settings: Any) -> Iterator[dict[str, Any]]:
    """The view whenever it has changed, up to the end."""
    last: dict[str, Any] = {}
    answered_s = time.monotonic()
    while not last.get("ended"):
        time.sleep(POLL_S)
        try:
            view = pool_ask.look(settings, ROLLOUT)
        except RecpoolError:
            if time.monotonic() - answered_s > PATIENCE_S:
                raise
            continue
        answered_s = time.monotonic()
        if view != last and view["phase"] != "none":
            last = view
            yield view


def _shares(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(each) for each in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"--canary {text}: give shares between 0 and 1 with commas between, such as 0.01,0.1,0.5"
        ) from None


def _checked(stated: Mapping[str, Any]) -> RolloutPlan:
    try:
        return RolloutPlan.model_validate(stated)
    except ValidationError as error:
        first = error.errors()[0]
        flag = f"--{str(first['loc'][0]).replace('_', '-')}: " if first["loc"] else ""
        raise ConfigError(flag + first["msg"].removeprefix("Value error, ")) from error
