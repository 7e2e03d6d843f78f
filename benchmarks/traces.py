"""Where the request traces lie, and how they are divided."""

from __future__ import annotations

import os
from pathlib import Path

from configs.errors import DataError

FOLDER = "TRACES"
"""Variable that names the folder of traces; absent: ``shared/traces`` in or beside the repository."""
REPORTED_FROM = 0.7
"""Of a trace: what comes before is for tuning."""


def folders() -> list[Path]:
    """Where traces may lie, the likeliest first."""
    root = Path(__file__).resolve().parents[1]
    stated = os.environ.get(FOLDER)
    return [Path(stated)] if stated else [place / "shared" / "traces" for place in (root, root.parent)]


def located(name: str) -> Path:
    """The file of a trace.

    Raises:
        DataError: no folder has it; names the places and the remedy.
    """
    files = [folder / name for folder in folders()]
    for file in files:
        if file.is_file():
            return file
    places = " or ".join(str(file) for file in files)
    raise DataError(f"trace {name} is not at {places}; set {FOLDER} to the folder that holds it")
