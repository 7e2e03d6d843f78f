"""Checkpoints of a work: numbered folders that are wholly there or not at all.

    <folder>/checkpoint-00000007/complete.json    names and sizes of all files, written last
    <folder>/checkpoint-00000007/...              what the work keeps

One process writes to a folder at a time; any may read.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import orjson

from configs.errors import ArtifactError
from features.files import atomic_directory
from pool.work import Work

KEPT = 2
COMPLETE = "complete.json"
_NAME = re.compile(r"checkpoint-(\d{8})")


def write(folder: Path, work: Work, keep: int = KEPT) -> Path:
    """Save the work as the newest checkpoint, and remove all but the ``keep`` newest; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for scratch in folder.glob(".checkpoint-*"):  # left by a process that was killed while writing
        shutil.rmtree(scratch, ignore_errors=True)
    found = _checkpoints(folder)
    target = folder / f"checkpoint-{_number(found[-1]) + 1 if found else 1:08d}"
    with atomic_directory(target) as scratch:
        work.save(scratch)
        (scratch / COMPLETE).write_bytes(orjson.dumps({"files": _sizes(scratch)}))
    for old in [*found, target][:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def latest(folder: Path) -> Path | None:
    """The newest complete checkpoint; None when there is none."""
    return next((path for path in reversed(_checkpoints(folder)) if _is_complete(path)), None)


def restore_latest(folder: Path, work: Work) -> Path | None:
    """Restore from the newest checkpoint that can be read, and return it; None when there is no checkpoint.

    Raises:
        ArtifactError: there are complete checkpoints and none can be restored; says why not the oldest.
    """
    failure: ArtifactError | None = None
    for path in reversed(_checkpoints(folder)):
        if _is_complete(path):
            try:
                work.restore(path)
                return path
            except ArtifactError as error:
                failure = error
    if failure is not None:
        raise failure
    return None


def _checkpoints(folder: Path) -> list[Path]:
    """Oldest first."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in found if _NAME.fullmatch(path.name) and path.is_dir()), key=_number)


def _number(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _sizes(folder: Path) -> dict[str, int]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != COMPLETE)
    return {str(path.relative_to(folder)): path.stat().st_size for path in files}


def _is_complete(folder: Path) -> bool:
    try:
        return orjson.loads((folder / COMPLETE).read_bytes())["files"] == _sizes(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return False
