"""What is wrong with settings, for a person: each field, the rule, and where the value came from."""

from __future__ import annotations

import os
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from configs.layers import variable_of


def wrong_settings(error: ValidationError, tree: type[BaseModel]) -> str:
    """A line for every wrong setting of a tree."""
    lines = [f"  {'.'.join(map(str, wrong['loc']))}: {_said(wrong, tree)}" for wrong in _precise(error)]
    return "\n".join([f"{len(lines)} wrong setting(s)", *lines])


def _precise(error: ValidationError) -> list[ErrorDetails]:
    """What is wrong, without what only follows from it: a list without its one wrong entry counts as empty."""
    wrong = error.errors()
    places = [each["loc"] for each in wrong]
    return [each for each in wrong if not any(loc[: len(each["loc"])] == each["loc"] != loc for loc in places)]


def _said(wrong: ErrorDetails, tree: type[BaseModel]) -> str:
    """The rule that was broken, by which value, and the variable that stated it, if one did."""
    variable = variable_of(wrong["loc"], os.environ)
    unknown = wrong["type"] == "extra_forbidden"
    rule = f"no such setting; known: {_fields_at(tree, wrong['loc'][:-1])}" if unknown else wrong["msg"]
    return f"{rule} (got {wrong['input']!r:.80}{f'; {variable} is set' if variable else ''})"


def _fields_at(tree: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The settings that a branch has, by its place in the tree."""
    kind: Any = tree
    for key in location:
        kind = get_args(kind)[get_origin(kind) is dict] if get_origin(kind) else kind.model_fields[key].annotation
    return sorted(kind.model_fields)
