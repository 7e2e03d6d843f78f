"""Every number of the settings tree has a lowest and a highest value, and what lies outside is refused at start.

The numbers are found by walking the tree, so one that is added later is held to the same.
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Iterator
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
import yaml
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel

from configs.errors import ConfigError
from configs.settings import Settings, load_settings
from deployments import cli

Place = tuple[str, ...]


def numbers(model: type[BaseModel], place: Place = ()) -> Iterator[tuple[Place, list[Any]]]:
    """Every number below a branch, or mapping to numbers, with its bounds, by its place."""
    for name, field in model.model_fields.items():
        yield from _numbers(field.annotation, field.metadata, (*place, name))


def _numbers(kind: Any, bounds: list[Any], place: Place) -> Iterator[tuple[Place, list[Any]]]:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is dict:
        yield from _numbers(parts[1], [], (*place, (get_args(parts[0]) or ("any",))[0]))
    elif origin is Annotated:
        yield from _numbers(parts[0], [b for about in parts[1:] for b in getattr(about, "metadata", [])], place)
    elif origin in (Union, types.UnionType):
        yield from (found for each in parts for found in _numbers(each, bounds, place))
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        yield from numbers(kind, place)
    elif kind in (int, float):
        yield place, bounds


FOUND = dict(numbers(Settings))
PLACES = sorted(FOUND)
ABSURD = 1e9
"""A timeout of 31 years in seconds, of 11 days in milliseconds; a batch of a billion rows."""


def limits(place: Place) -> list[float]:
    """Values at and next to the bounds of a number that it may not have."""
    kinds = {Gt: ("gt", 0), Ge: ("ge", -1), Lt: ("lt", 0), Le: ("le", 1)}
    known = [(bound, kinds[type(bound)]) for bound in FOUND[place] if type(bound) in kinds]
    assert len(known) == 2, f"{dotted(place)} needs a lowest and a highest value"
    return [float(getattr(bound, name)) + beyond for bound, (name, beyond) in known]


def dotted(place: Place) -> str:
    return ".".join(place)


@pytest.fixture
def refused(tmp_path):
    """What is said of a profile that sets one place to a value; fails when it is taken."""

    def load(place: Place, value: Any) -> str:
        tree: Any = value
        for key in reversed(place):
            tree = {key: tree}
        file = tmp_path / "profile.yaml"
        file.write_text(yaml.safe_dump(tree))
        with pytest.raises(ConfigError) as error:
            load_settings(file)
        return error.value.message

    return load


def test_the_walk_finds_numbers_of_every_depth():
    assert {
        ("serving", "default_timeout_ms"),
        ("store", "ttl_s"),
        ("recall", "sources", "ann", "timeout_ms"),
        ("plan", "stages", "recall", "replicas"),
        ("ranking", "weights", "recall"),
        ("ranking", "caps", "any"),
    } <= set(PLACES)


@pytest.mark.parametrize("place", PLACES, ids=dotted)
def test_a_number_outside_of_its_bounds_is_refused_by_the_name_of_its_field(refused, place):
    for value in [*limits(place), math.nan, math.inf, -math.inf, ABSURD, -ABSURD]:
        assert dotted(place) in refused(place, value), value


TIMES_AND_SIZES = [p for p in PLACES if p[-1].endswith(("_ms", "_rows", "_bytes")) or p[-1] in ("lanes", "replicas")]


@pytest.mark.parametrize("place", TIMES_AND_SIZES, ids=dotted)
@pytest.mark.parametrize("value", [0, -1, "soon", [], {}])
def test_a_time_or_a_size_of_nothing_is_refused(refused, place, value):
    assert dotted(place) in refused(place, value)


@pytest.mark.parametrize("value", [math.nan, 0, -5, ABSURD])
@pytest.mark.parametrize("command", ["up", "plan"])
def test_the_commands_refuse_it_before_they_touch_anything(monkeypatch, capsys, tmp_path, command, value):
    home, profile = tmp_path / "home", tmp_path / "profile.yaml"
    profile.write_text(yaml.safe_dump({"serving": {"default_timeout_ms": value, "max_batch_rows": 0}}))
    monkeypatch.setenv("RECPOOL_HOME", str(home))
    monkeypatch.setattr(sys, "argv", ["recpool", command, "--profile", str(profile)])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    said = capsys.readouterr().err
    assert "serving.default_timeout_ms" in said and "serving.max_batch_rows" in said
    assert not home.exists()
