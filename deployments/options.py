"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from configs.settings import Settings, load_settings

Profile = Annotated[str, typer.Option(help="profile below configs/profiles, or path of a .yaml file")]
DatasetName = Annotated[str | None, typer.Option("--dataset", help="dataset name; absent: the profile's")]
AsJson = Annotated[bool, typer.Option("--json", help="print the result as one JSON document")]
Recipe = Annotated[str, typer.Option(help="quick (minutes) or full (best quality)")]


def resolve(profile: str, dataset: str | None) -> tuple[Settings, dict[str, Any]]:
    """The settings that the two options choose, and what of them wins over profile and environment."""
    overrides = {"dataset": dataset} if dataset else {}
    return load_settings(profile, overrides), overrides


def absolute(profile: str) -> str:
    """A path that also holds for the cluster's processes, which run in another folder than this one."""
    return str(Path(profile).absolute()) if profile.endswith((".yaml", ".yml")) else profile
