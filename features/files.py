"""Writing that is either wholly visible or not at all."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_directory(target: Path) -> Iterator[Path]:
    """Yield a scratch folder that becomes ``target`` on success and vanishes on failure.

    An existing target is replaced. Readers see the old folder or the new one, for a moment neither,
    never a half-written one.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.parent / f".{target.name}.{uuid.uuid4().hex}"
    scratch.mkdir()
    try:
        yield scratch
        sync_tree(scratch)
        if target.exists():
            old = target.parent / f".{target.name}.{uuid.uuid4().hex}.old"
            target.rename(old)
            scratch.rename(target)
            shutil.rmtree(old)
        else:
            scratch.rename(target)
        sync(target.parent)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def write_atomically(target: Path, content: bytes) -> None:
    """Replace one file; a reader sees the old bytes or the new ones."""
    scratch = target.parent / f".{target.name}.{uuid.uuid4().hex}"
    try:
        scratch.write_bytes(content)
        sync(scratch)
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)


def sync_tree(folder: Path) -> None:
    """Flush a folder and all below it to the disk."""
    for path in [folder, *folder.rglob("*")]:
        sync(path)


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
