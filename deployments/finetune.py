"""``ray job submit -- python -m deployments.finetune --name nightly``: a fine-tune as a workload of the running pool.

The job is a driver that declares the workload, tells how it goes, and ends as it ends; it computes nothing itself.
What trains is the workload's own process, on a device of the pool and behind its gate, so it gives way to traffic
and goes on from its checkpoints whatever becomes of the job.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Annotated, Any

import orjson
import ray
import typer

from configs.errors import RecpoolError, Unavailable
from configs.settings import Settings, load_settings
from deployments import console, pool_ask
from deployments.cli_rollout import followed
from deployments.cluster import Cluster
from deployments.finetune_request import Wanted, declare
from deployments.offline import absorb_events
from deployments.pool_client import PoolClient
from deployments.pool_follow import Follower, Moment, Trouble, moment_line
from deployments.pool_top import clean
from deployments.releases.views import ROLLOUT
from deployments.rollout import deployed_arguments
from features.logged_interactions import Absorbed
from pool.repository import CHAMPION
from pool.views import WorkloadReport

TIMEOUT_S = 10.0
"""Of a call to the controller: unlike an HTTP client's, nothing gives up a job that waits."""
CONNECT_TIMEOUT_S = 5.0
STOPPED = "its job was stopped"
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class OnStop(StrEnum):
    """What becomes of the workload when the job is stopped."""

    cancel = "cancel"
    detach = "detach"


class Since(StrEnum):
    """From when on events are added to the dataset before training."""

    last = "last"


@dataclass(frozen=True)
class Telling:
    """Where what happens goes: standard output, one line each; for programs one JSON object a line."""

    name: str
    as_json: bool

    def progress(self, news: Moment | Trouble) -> None:
        if self.as_json:
            event = "progress" if isinstance(news, Moment) else "trouble"
            self._object({"event": event, "name": self.name, **asdict(news)})
        else:
            is_moment = isinstance(news, Moment)
            self._line(moment_line(self.name, news) if is_moment else f"{self.name}  {news.message}")

    def result(self, ended: WorkloadReport) -> None:
        if self.as_json:
            self._object({"event": "result", **asdict(ended)})
        elif ended.phase == "succeeded":
            self._line(f"published release {ended.result.get('version')}; `recpool release list` shows it")

    def absorbed(self, found: Absorbed) -> None:
        if self.as_json:
            self._object({"event": "absorbed", "name": self.name, **asdict(found)})
        else:
            self._line(
                f"{self.name}  {found.interactions} new interactions, {found.users} new users, {found.items} new items"
            )

    def rollout(self, version: str, line: str) -> None:
        if self.as_json:
            self._object({"event": "rollout", "name": self.name, "version": version, "message": line})
        else:
            self._line(f"release {version}  {line}")

    def stopped(self, what: str) -> None:
        if self.as_json:
            self._object({"event": "stopped", "name": self.name, "message": what})
        else:
            self._line(f"{self.name}  {what}")

    @staticmethod
    def _object(fields: Mapping[str, Any]) -> None:
        print(orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY).decode(), flush=True)

    @staticmethod
    def _line(line: str) -> None:
        print(clean(line), flush=True)


@app.command()
def finetune(
    name: Annotated[str, typer.Option(help="of the workload, unique in the pool")],
    start_from: Annotated[
        str, typer.Option(help="release whose weights to begin with: a version, champion, or scratch for none")
    ] = CHAMPION,
    recipe: Annotated[str | None, typer.Option(help="quick or full; absent: that of the release begun with")] = None,
    since: Annotated[
        Since | None, typer.Option(help="last: first bring the dataset up to date with the log of events")
    ] = None,
    promote: Annotated[bool, typer.Option("--promote", help="roll the release out once it is published")] = False,
    epochs: Annotated[int | None, typer.Option(min=1, help="of every model; absent: the recipe's")] = None,
    most_rows: Annotated[int | None, typer.Option(min=1, help="newest interactions to train on; absent: all")] = None,
    recompute: Annotated[bool, typer.Option(help="less memory for activations, for more time")] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="of what is drawn while training")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="cores it computes on; absent: one")] = None,
    min_milli: Annotated[int | None, typer.Option(help="thousandths of a device it is sure of")] = None,
    desired_milli: Annotated[int | None, typer.Option(help="thousandths it can use when some are free")] = None,
    memory_bytes: Annotated[int | None, typer.Option(help="of the device's memory, held with the lease")] = None,
    tier: Annotated[list[str] | None, typer.Option(help="cpu, gpu or npu; repeat; absent: any the pool has")] = None,
    team: Annotated[str | None, typer.Option(help="who pays")] = None,
    on_stop: Annotated[OnStop, typer.Option(help="what becomes of it when the job is stopped")] = OnStop.cancel,
    every: Annotated[float, typer.Option(min=0.2, max=3_600, help="seconds between two lines of progress")] = 5.0,
    profile: Annotated[str | None, typer.Option(help="absent: what the running service was brought up with")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object a line, the result last")] = False,
) -> None:
    """Fine-tune in the pool of the running service and publish a release.

    Exits with 0 when it succeeded, with 1 when it failed, was cancelled or parked, with 2 when an option is wrong, and
    with 128 and the signal's number when the job was stopped.
    """
    training = {"epochs": epochs, "most_rows": most_rows, "recompute": recompute or None, "seed": seed}
    place = {"min_milli": min_milli, "desired_milli": desired_milli, "memory_bytes": memory_bytes}
    place |= {"tier": tuple(tier) if tier else None, "team": team}
    wanted = Wanted(name, start_from, recipe, {**training, "threads": threads}, place)
    settings, telling = service_settings(profile), Telling(name, as_json)
    connect(settings)
    if since is not None:
        telling.absorbed(absorb_events(settings))
    pool = PoolClient(read_timeout_s=TIMEOUT_S, change_timeout_s=TIMEOUT_S)
    after = (lambda version: roll_out(settings, version, telling)) if promote else None
    code = asyncio.run(run(pool, settings, wanted, on_stop, every, telling, after))
    raise typer.Exit(code)


async def run(
    pool: PoolClient,
    settings: Settings,
    wanted: Wanted,
    on_stop: OnStop,
    every_s: float,
    telling: Telling,
    after: Callable[[str], bool] | None = None,
) -> int:
    """Check, submit and follow; returns the exit code.

    Args:
        after: called with the version that was published; whether what it does succeeded.
    Raises:
        RecpoolError: it cannot be submitted; as `declare`, and as the client's methods.
    """
    stop = _on_signals()
    spec = declare(settings, await pool.report(), wanted)
    await pool.submit(spec)
    following = asyncio.create_task(Follower(pool, spec.name, telling.progress, every_s).to_its_end())
    await asyncio.wait({following, stop}, return_when=asyncio.FIRST_COMPLETED)
    if not following.done():
        following.cancel()
        telling.stopped(await _leave(pool, spec.name, on_stop))
        return 128 + stop.result()
    stop.cancel()
    ended = following.result()
    telling.result(ended)
    if ended.phase != "succeeded":
        return 1
    done = after is None or await asyncio.to_thread(after, str(ended.result["version"]))
    return 0 if done else 1


def roll_out(settings: Settings, version: str, telling: Telling) -> bool:
    """Let a release come to serve step by step; whether it does. Raises Unavailable when the service is away."""
    pool_ask.change(settings, ROLLOUT, {"version": version})
    told = 0
    for view in followed(settings):
        for line in view["told"][told:]:
            telling.rollout(version, line)
        told = len(view["told"])
        if view["ended"]:
            return view["phase"] == "promoted"
    return False


def service_settings(profile: str | None) -> Settings:
    """The settings of the service that runs in this home: what is trained and published must be what it serves.

    Args:
        profile: taken instead, when given.
    Raises:
        Unavailable: the cluster's dashboard does not answer. ConfigError: as `load_settings`.
    """
    if profile is not None:
        return load_settings(profile)
    settings = load_settings()
    cluster = Cluster(settings.home)
    record = cluster.record()
    if record is None:  # a cluster of one's own, not brought up by `recpool up`
        return settings
    arguments = deployed_arguments(record, cluster.token())
    return load_settings(arguments.get("profile", "default"), arguments.get("overrides"))


def connect(settings: Settings) -> None:
    """Make this process part of the cluster, unless it is. Raises Unavailable when there is none to be found."""
    if ray.is_initialized():
        return
    try:
        _require_open(os.environ.get("RAY_ADDRESS", ""))
        ray.init(address="auto", log_to_driver=False, logging_level=logging.WARNING)
    except (OSError, RuntimeError, ValueError) as error:
        raise Unavailable(
            f"no Ray cluster to join ({str(error).splitlines()[0]}); bring it up by `recpool up --profile pool`, then "
            f"`. {Cluster(settings.home).folders.shell}` and `ray job submit -- python -m deployments.finetune ...`"
        ) from error


def _require_open(address: str) -> None:
    """Raise OSError when nothing listens at ``host:port``; Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S).close()


def _on_signals() -> asyncio.Task[int]:
    """Ends with the number of the first signal that asks this process to end. Ray's own handler would just exit."""
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[int] = loop.create_future()

    def stop(number: int) -> None:
        if not asked.done():
            asked.set_result(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, int(number))

    async def wait() -> int:
        return await asked

    return loop.create_task(wait())


async def _leave(pool: PoolClient, name: str, on_stop: OnStop) -> str:
    """Do with the workload as was stated; returns what was done. Ray kills a job 3 s after it asked it to stop."""
    if on_stop is OnStop.detach:
        return f"goes on without its job; see `recpool pool status {name}`"
    try:
        return f"cancelled: {(await pool.cancel(name, STOPPED)).reason}"
    except RecpoolError as error:
        return f"not cancelled: {error.message}"


def main() -> None:
    console.run(app)


if __name__ == "__main__":
    main()
