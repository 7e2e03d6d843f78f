"""``recpool release``: look at what is published."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from deployments.console import show
from deployments.options import AsJson, DatasetName, Profile, resolve
from pool.repository import ReleaseRepository

releases = typer.Typer(no_args_is_help=True, help="Look at published releases.")


@releases.command("list")
def list_releases(profile: Profile = "default", dataset: DatasetName = None, as_json: AsJson = False) -> None:
    """Published releases, oldest first."""
    repository = _repository(profile, dataset)
    manifests = [repository.manifest(version) for version in repository.versions()]
    champion = repository.champion()
    rows = [
        {
            "version": m.version,
            "champion": m.version == champion,
            "recipe": m.recipe,
            "created_at_s": m.created_at_s,
            "users": m.users,
            "items": m.items,
        }
        for m in manifests
    ]
    lines = [
        f"{m.version:>6}  {_when(m.created_at_s)}  {m.recipe:<6}  {m.users:,} users  {m.items:,} items"
        + ("  champion" if m.version == champion else "")
        for m in manifests
    ]
    show(rows, lines or ["no release; run `recpool train`"], as_json)


@releases.command("show")
def show_release(
    version: Annotated[str | None, typer.Argument(help="absent: the champion")] = None,
    profile: Profile = "default",
    dataset: DatasetName = None,
    as_json: AsJson = False,
) -> None:
    """One release's manifest."""
    repository = _repository(profile, dataset)
    manifest = repository.manifest(version or repository.champion() or "(champion)")
    plain = manifest.model_dump(mode="json")
    lines = [f"{name}  {value}" for name, value in plain.items() if name != "files"]
    lines += [f"file  {entry.bytes:>12,} bytes  {name}" for name, entry in manifest.files.items()]
    show(plain, lines, as_json)


def _repository(profile: str, dataset: str | None) -> ReleaseRepository:
    return ReleaseRepository(resolve(profile, dataset)[0].releases_folder)


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
