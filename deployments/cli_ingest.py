"""``recpool ingest``: anyone's files, or MovieLens-1M, to a dataset below the home."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from pydantic import ValidationError

from configs.errors import ConfigError
from configs.settings import load_settings
from deployments import offline
from deployments.console import reporting, show
from deployments.options import AsJson, Profile
from features import movielens
from features.ingest_spec import IngestSpec

Pairs = list[str] | None


def ingest(
    interactions: Annotated[Path | None, typer.Argument(help="CSV or Parquet; absent: MovieLens-1M")] = None,
    users: Annotated[Path | None, typer.Option(help="CSV or Parquet file of users")] = None,
    items: Annotated[Path | None, typer.Option(help="CSV or Parquet file of items")] = None,
    name: Annotated[str | None, typer.Option(help="dataset name; absent: the profile's")] = None,
    column: Annotated[Pairs, typer.Option(help="NAME=COLUMN, such as item_id=sku; repeat")] = None,
    type: Annotated[Pairs, typer.Option(help="COLUMN=TYPE instead of the inferred type; repeat")] = None,
    separator: Annotated[Pairs, typer.Option(help="COLUMN=TEXT between a column's values; repeat")] = None,
    positive_at: Annotated[float | None, typer.Option(help="value from which an event is positive")] = None,
    time_unit: Annotated[str, typer.Option(help="auto, s, ms, us or ns")] = "auto",
    max_bad_share: Annotated[float, typer.Option(help="share of bad rows that refuses a file")] = 0.01,
    skip_bad: Annotated[bool, typer.Option(help="drop bad rows however many they are")] = False,
    spec: Annotated[Path | None, typer.Option(help="YAML file of all this; wins over the options")] = None,
    profile: Profile = "default",
    as_json: AsJson = False,
) -> None:
    """Read interactions (and users and items), check every row, and save a dataset."""
    settings = load_settings(profile)
    name = name or settings.dataset
    options: dict[str, Any] = {
        "name": name,
        "interactions": interactions,
        "users": users,
        "items": items,
        "columns": _pairs("column", column),
        "types": _pairs("type", type),
        "separators": _pairs("separator", separator),
        "positive_at": "auto" if positive_at is None else positive_at,
        "time_unit": time_unit,
        "max_bad_share": max_bad_share,
        "skip_bad": skip_bad,
    }
    with reporting() as report:
        if spec is not None:
            wanted = _validated({**options, **_read_spec(spec)}, str(spec))
        elif interactions is not None:
            wanted = _validated(options, "options")
        else:
            wanted = movielens.spec(movielens.fetch(settings.home / "cache", report), name)
        found = offline.save_dataset(settings, wanted, report)
    show({"dataset": wanted.name, **found.as_dict()}, [f"dataset {wanted.name}", *found.lines()], as_json)


def _pairs(option: str, given: Pairs) -> dict[str, str]:
    """``["a=b"]`` as ``{"a": "b"}``; the right-hand side may hold further equal signs."""
    for pair in given or []:
        if not pair.partition("=")[0] or "=" not in pair:
            raise ConfigError(f"--{option} {pair!r}: write it as NAME=VALUE")
    return dict(pair.split("=", 1) for pair in given or [])


def _read_spec(file: Path) -> dict[str, Any]:
    try:
        raw = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{file}: not a readable YAML file ({error})") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{file}: an ingest spec is a mapping, found {type(raw).__name__}")
    return raw


def _validated(raw: dict[str, Any], origin: str) -> IngestSpec:
    try:
        return IngestSpec.model_validate(raw)
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, e['loc']))}: {e['msg']} (got {e['input']!r:.60})" for e in error.errors()]
        raise ConfigError(f"{origin}: {error.error_count()} wrong field(s)\n" + "\n".join(lines)) from error
