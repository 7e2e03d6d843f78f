"""Releases below any URL that fsspec knows, such as ``s3://bucket/releases/ml-1m``.

A version becomes visible with its manifest, which is written last; its number was claimed before by a file that only
one writer can make. How sure "only one" is depends on the store: S3, GCS and plain folders refuse the second writer by
themselves; for others fsspec looks before it writes, which leaves a moment in which two may both win.
"""

from __future__ import annotations

from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem

from configs.errors import ConfigError, Unavailable
from pool.local_entries import LocalEntries
from pool.manifest import MANIFEST

CLAIM = "claimed"
ENTRIES = "aliases"


class RemoteReleases:
    """Implements `pool.alias_log.Entries` too, for the aliases of these releases.

    Raises:
        ConfigError: no such kind of URL, or its driver is not installed.
    """

    def __init__(self, url: str):
        self._url = url.rstrip("/")
        try:
            # What others wrote must show at once.
            self._fs, self._root = fsspec.core.url_to_fs(self._url, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"releases.url: {url} cannot be used ({error}); see fsspec's list of drivers") from error

    # --- releases

    def versions(self) -> list[str]:
        """Names of the folders that hold a manifest."""
        return [name for name in self._list("") if self._fs.exists(self._at(name, MANIFEST))]

    def claim(self, version: str) -> bool:
        """Take a number for a release that is to be published; False when it is taken."""
        try:
            self._create(self._at(version, CLAIM), b"")
        except FileExistsError:
            return False
        return True

    def publish(self, version: str, folder: Path) -> None:
        """Copy a folder there, its manifest last. Raises Unavailable when the store fails."""
        names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
        for name in sorted(names, key=lambda each: (each == MANIFEST, each)):
            self._write(self._at(version, name), folder / name)

    def fetch(self, version: str, folder: Path) -> None:
        """Copy a version into a folder. Raises Unavailable when the store fails."""
        root = self._at(version)
        try:
            for name in self._fs.find(root):
                target = folder / name.removeprefix(root).lstrip("/")
                if target.name == CLAIM and target.parent == folder:
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                self._fs.get_file(name, str(target))
        except OSError as error:
            raise self._unavailable(error) from error

    def remove(self, version: str) -> None:
        """The manifest first, so that nobody finds half of it; the number stays claimed and is not used again."""
        try:
            for name in sorted(self._fs.find(self._at(version)), key=lambda each: not each.endswith(f"/{MANIFEST}")):
                if name != self._at(version, CLAIM):
                    self._fs.rm_file(name)
        except OSError as error:
            raise self._unavailable(error) from error

    # --- entries

    def names(self) -> list[str]:
        return self._list(ENTRIES)

    def read(self, name: str) -> bytes:
        return self._fs.cat_file(self._at(ENTRIES, name))

    def create(self, name: str, content: bytes) -> None:
        self._create(self._at(ENTRIES, name), content)

    # --- the store

    def _create(self, path: str, content: bytes) -> None:
        folder, _, name = path.rpartition("/")
        if isinstance(self._fs, LocalFileSystem):
            LocalEntries(Path(folder)).create(name, content)
            return
        self._fs.makedirs(folder, exist_ok=True)
        try:
            self._fs.pipe_file(path, content, mode="create")
        except FileExistsError:
            raise
        except OSError as error:
            if self._fs.exists(path):  # a store that says so in its own words
                raise FileExistsError(path) from error
            raise self._unavailable(error) from error

    def _write(self, path: str, file: Path) -> None:
        try:
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._fs.put_file(str(file), path)
        except OSError as error:
            raise self._unavailable(error) from error

    def _list(self, folder: str) -> list[str]:
        try:
            found = self._fs.ls(self._at(folder) if folder else self._root, detail=False)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unavailable(error) from error
        return [each.rstrip("/").rpartition("/")[2] for each in found]

    def _at(self, *parts: str) -> str:
        return "/".join([self._root, *parts])

    def _unavailable(self, error: Exception) -> Unavailable:
        return Unavailable(f"releases at {self._url}: {error}; check the address and the rights, and try again")
