"""Layers of settings: what environment variables state, and one tree laid over another."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from configs.errors import ConfigError

PREFIX = "RECPOOL_"
SEPARATOR = "__"
ANY_KEY = "?*"
"""Stands in a name for a key that the settings tree leaves to its user."""


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both in one. Where they meet, mappings are merged entry by entry and anything else is that of ``above``."""
    both = dict(below)
    for key, value in above.items():
        under = both.get(key)
        both[key] = merged(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return both


def stated_by(variables: Mapping[str, str], tree: type[BaseModel]) -> dict[str, Any]:
    """The settings that variables such as ``RECPOOL_SERVING__PORT=8001`` state, as nested mappings.

    A value that starts with a bracket or a brace is JSON; any other is taken as text.

    Raises:
        ConfigError: a RECPOOL_* variable names nothing in the tree, or does not hold the JSON it begins with.
    """
    ours = {name.upper(): text for name, text in variables.items() if name.upper().startswith(PREFIX)}
    known = list(_names(tree, PREFIX))
    stated: dict[str, Any] = {}
    for name, text in sorted(ours.items()):  # a branch comes before what it holds, so the more precise name wins
        if not any(fnmatchcase(name, each) for each in known):
            [closest] = difflib.get_close_matches(name, known, n=1, cutoff=0)
            raise ConfigError(f"environment: {name} is no setting; the closest is {closest.replace(ANY_KEY, '<NAME>')}")
        value = _value(name, text)
        for key in reversed(name.removeprefix(PREFIX).lower().split(SEPARATOR)):
            value = {key: value}
        stated = merged(stated, value)
    return stated


def variable_of(location: tuple[int | str, ...], variables: Mapping[str, str]) -> str | None:
    """The variable that is set for a place in the tree or for a branch around it, the nearest one."""
    names = {name.upper(): name for name in variables}
    around = (PREFIX + SEPARATOR.join(map(str, location[:n])).upper() for n in range(len(location), 0, -1))
    return next((names[name] for name in around if name in names), None)


def _names(kind: Any, name: str) -> Iterator[str]:
    """Every variable below one that would set a value of this kind."""
    if get_origin(kind) is dict:
        key, value = get_args(kind)
        for each in get_args(key) if get_origin(key) is Literal else (ANY_KEY,):
            yield from _named(value, name + (each if each == ANY_KEY else each.upper()))
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        for field, about in kind.model_fields.items():
            yield from _named(about.annotation, name + field.upper())


def _named(kind: Any, name: str) -> Iterator[str]:
    yield name
    yield from _names(kind, name + SEPARATOR)


def _value(name: str, text: str) -> Any:
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"environment: {name} is not valid JSON ({error})") from error
