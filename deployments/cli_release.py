"""``recpool release``: look at what is published, and choose what serves."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from deployments.cli_rollout import cancel_rollout, rollout, rollout_status
from deployments.console import reporting, show
from deployments.options import AsJson, DatasetName, Profile, resolve
from deployments.releases import housekeeping, promotion
from deployments.releases.housekeeping import release_lines
from pool.alias_log import Change
from pool.repository import CHAMPION, ReleaseRepository, open_releases

releases = typer.Typer(no_args_is_help=True, help="Look at published releases, and choose what serves.")
releases.command("rollout")(rollout)
releases.command("rollout-status")(rollout_status)
releases.command("rollout-cancel")(cancel_rollout)
Version = Annotated[str, typer.Argument(help="of a release, as `recpool release list` has it")]
Why = Annotated[str, typer.Option("--reason", help="why; it is kept in the release's history")]


@releases.command("list")
def list_releases(profile: Profile = "default", dataset: DatasetName = None, as_json: AsJson = False) -> None:
    """Published releases, oldest first."""
    repository = _repository(profile, dataset)
    rows = [{**line, "champion": CHAMPION in line["aliases"]} for line in release_lines(repository)]
    lines = [
        f"{row['version']:>6}  {_when(row['created_at_s'])}  {row['recipe']:<6}  {row['users']:,} users  "
        f"{row['items']:,} items  {' '.join(row['aliases'])}"
        for row in rows
    ]
    show(rows, [line.rstrip() for line in lines] or ["no release; run `recpool train`"], as_json)


@releases.command("show")
def show_release(
    version: Annotated[str | None, typer.Argument(help="absent: the champion")] = None,
    profile: Profile = "default",
    dataset: DatasetName = None,
    as_json: AsJson = False,
) -> None:
    """One release's manifest, and what was decided about it."""
    repository = _repository(profile, dataset)
    manifest = repository.manifest(version or repository.champion() or "(champion)")
    history = repository.history(manifest.version)
    plain = {**manifest.model_dump(mode="json"), "history": [each.model_dump(mode="json") for each in history]}
    lines = [f"{name}  {value}" for name, value in plain.items() if name not in ("files", "history")]
    lines += [f"file  {entry.bytes:>12,} bytes  {name}" for name, entry in manifest.files.items()]
    show(plain, lines + [f"{_told(each)}" for each in history], as_json)


@releases.command("diff")
def diff_releases(
    old: Version, new: Version, profile: Profile = "default", dataset: DatasetName = None, as_json: AsJson = False
) -> None:
    """What differs between two releases."""
    found = housekeeping.difference(_repository(profile, dataset), old, new)
    lines = [
        f"{part:<8}  {name}  {before} -> {after}"
        for part in ("fields", "metrics", "features")
        for name, (before, after) in found[part].items()
    ]
    lines += [f"{what:<8}  {name}" for what, names in found["files"].items() for name in names]
    show(found, lines or ["nothing but the version differs"], as_json)


@releases.command("history")
def show_history(profile: Profile = "default", dataset: DatasetName = None, as_json: AsJson = False) -> None:
    """What was decided about all releases, oldest first."""
    history = _repository(profile, dataset).history()
    show([each.model_dump(mode="json") for each in history], map(_told, history), as_json)


@releases.command("promote")
def promote_release(
    version: Version,
    alias: Annotated[str, typer.Option(help="champion, challenger or shadow")] = CHAMPION,
    reason: Why = "",
    profile: Profile = "default",
    dataset: DatasetName = None,
    as_json: AsJson = False,
) -> None:
    """Let a release serve, for all callers at once; a running service swaps it in without restarting anything."""
    settings, _ = resolve(profile, dataset)
    with reporting() as report:
        done = promotion.promote(settings, version, alias, reason, told=lambda status: report(f"Serve: {status}", 0.0))
    _show_promoted(done, as_json)


@releases.command("rollback")
def roll_back_release(
    reason: Why = "", profile: Profile = "default", dataset: DatasetName = None, as_json: AsJson = False
) -> None:
    """Return to the release that was champion before this one."""
    settings, _ = resolve(profile, dataset)
    with reporting() as report:
        done = promotion.roll_back(settings, reason, lambda status: report(f"Serve: {status}", 0.0))
    _show_promoted(done, as_json)


@releases.command("gc")
def collect_releases(
    keep: Annotated[int | None, typer.Option(min=1, help="newest releases that stay; absent: the profile's")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would go, and remove nothing")] = False,
    profile: Profile = "default",
    dataset: DatasetName = None,
    as_json: AsJson = False,
) -> None:
    """Remove old releases. What an alias names, and what a process on this machine has loaded, always stays."""
    settings, _ = resolve(profile, dataset)
    found = housekeeping.collect(open_releases(settings), keep or settings.releases.keep, dry_run)
    verb = "would remove" if dry_run else "removed"
    lines = [f"{verb} {version}  {freed:,} bytes" for version, freed in found.removed.items()]
    lines += [f"kept {version}: {why}" for version, why in found.kept.items()]
    plain = {"removed": found.removed, "kept": found.kept, "freed_bytes": found.freed_bytes, "dry_run": dry_run}
    show(plain, lines or ["no release; run `recpool train`"], as_json)


def _show_promoted(done: promotion.Promoted, as_json: bool) -> None:
    plain = {"version": done.version, "alias": done.alias, "before": done.before, "served": done.served}
    place = "" if done.alias != CHAMPION else ", and serves" if done.served else "; no service runs in this home"
    before = f" (before: {done.before})" if done.before else ""
    show(plain, [f"release {done.version} is the {done.alias} now{before}{place}"], as_json)


def _told(change: Change) -> str:
    why = f"  {change.reason}" if change.reason else ""
    return f"{_when(change.at_s)}  release {change.version}  {change.event}{why}"


def _repository(profile: str, dataset: str | None) -> ReleaseRepository:
    return open_releases(resolve(profile, dataset)[0])


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
