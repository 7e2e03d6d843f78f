"""The ``recpool`` command. Each command is a thin line to the function that does the work."""

from __future__ import annotations

import signal
import sys
from typing import Annotated, Any

import typer

from configs.settings import load_settings
from deployments import ask, console, launch, offline
from deployments.cli_budget import budget
from deployments.cli_experiment import experiment
from deployments.cli_ingest import ingest
from deployments.cli_plan import plan
from deployments.cli_pool import pool
from deployments.cli_release import releases
from deployments.cli_simulate import simulate
from deployments.console import flat_lines, reporting, show
from deployments.options import AsJson, DatasetName, Profile, Recipe, absolute, resolve

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command()(budget)
app.command()(ingest)
app.command()(plan)
app.command()(simulate)
app.add_typer(releases, name="release")
app.add_typer(experiment, name="experiment")
app.add_typer(pool, name="pool")


def main() -> None:
    """Entry point of ``recpool``; see `console.run` for its exit codes."""
    console.run(app)


@app.command()
def up(
    profile: Profile = "default",
    dataset: DatasetName = None,
    block: Annotated[bool, typer.Option(help="stay in the foreground until SIGINT or SIGTERM, then end it")] = False,
    as_json: AsJson = False,
) -> None:
    """Set up whatever is missing and serve; a second call starts nothing twice."""
    settings, overrides = resolve(profile, dataset)
    signal.signal(signal.SIGTERM, _leave)
    with reporting() as report:
        done = launch.Launch(settings, absolute(profile), overrides, report).up()
    show(done.as_dict(), done.lines(), as_json)
    if block:
        launch.watch(settings)


@app.command()
def down(profile: Profile = "default", as_json: AsJson = False) -> None:
    """End Ray, Serve, HAProxy and everything else that `up` started."""
    ended = launch.down(load_settings(profile))
    show({"ended": ended}, [f"ended {ended} processes" if ended else "nothing was running"], as_json)


@app.command()
def train(
    profile: Profile = "default",
    dataset: DatasetName = None,
    recipe: Recipe = "quick",
    promote: Annotated[bool, typer.Option(help="let the new release serve")] = True,
    as_json: AsJson = False,
) -> None:
    """Train on a dataset and publish a release."""
    settings, _ = resolve(profile, dataset)
    with reporting() as report:
        offline.ensure_dataset(settings, report)
        version = offline.train(settings, recipe, report, promote)
    show({"release": version, "champion": promote}, [f"published release {version}"], as_json)


@app.command()
def evaluate(
    protocol: Annotated[str, typer.Option(help="ctr-random, ctr-time or topn")] = "topn",
    recipe: Recipe = "quick",
    profile: Profile = "default",
    dataset: DatasetName = None,
    as_json: AsJson = False,
) -> None:
    """Train and measure under a published protocol."""
    from serving.evaluation import evaluate as run_protocol  # torch takes seconds to import

    settings, _ = resolve(profile, dataset)
    with reporting() as report:
        offline.ensure_dataset(settings, report)
        figures = run_protocol(offline.load_dataset(settings), protocol, recipe, report)
    show(figures, flat_lines(figures), as_json)


@app.command()
def recommend(
    user_id: Annotated[str | None, typer.Argument(help="absent for an anonymous user")] = None,
    k: Annotated[int, typer.Option("--k", "-k", help="items wanted")] = 10,
    seed: Annotated[list[str] | None, typer.Option(help="item id to start from; repeat for more")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="item id never to return; repeat for more")] = None,
    filter: Annotated[str | None, typer.Option(help="boolean expression over item fields")] = None,
    local: Annotated[bool, typer.Option(help="answer in this process, not by the running service")] = False,
    profile: Profile = "default",
    dataset: DatasetName = None,
    as_json: AsJson = False,
) -> None:
    """Recommend items to one user."""
    settings, _ = resolve(profile, dataset)
    body: dict[str, Any] = {"k": k, "dry_run": True, "user_id": user_id, "filter": filter}
    body |= {"seed_item_ids": seed or [], "exclude_item_ids": exclude or []}
    reply = ask.in_process(settings, body) if local else ask.running_service(settings, body)
    show(reply, ask.lines(reply), as_json)


def _leave(number: int, frame: Any) -> None:
    """Let SIGTERM unwind like an interrupt, so that a start that is cut short leaves nothing running."""
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
