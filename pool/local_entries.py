"""Small files of a folder, each made once and durably; `pool.alias_log` keeps its changes in them."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from features.files import sync


class LocalEntries:
    """Implements `pool.alias_log.Entries`. The folder is made by the first entry."""

    def __init__(self, folder: Path):
        self._folder = folder

    def names(self) -> list[str]:
        return [each.name for each in self._folder.iterdir()] if self._folder.is_dir() else []

    def read(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()

    def create(self, name: str, content: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        scratch = self._folder / f".{uuid.uuid4().hex}"
        try:
            scratch.write_bytes(content)
            sync(scratch)
            os.link(scratch, self._folder / name)  # unlike a rename, it fails where there is one
            sync(self._folder)
            sync(self._folder.parent)
        finally:
            scratch.unlink(missing_ok=True)
