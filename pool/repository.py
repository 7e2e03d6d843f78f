"""The release repository: numbered, checksummed, atomic directories, and the aliases that point at them.

    <folder>/aliases/00000001.json   who is champion, challenger and shadow; see `pool.alias_log`
    <folder>/<version>/manifest.json
    <folder>/<version>/models/<name>/config.pbtxt, /1/model.onnx     Triton's model-repository layout
    <folder>/<version>/...         tables, index, encoder

A version is visible only when it is complete: it is written to a hidden folder, checksummed, synced
and renamed. Nothing inside a version ever changes afterwards. Where releases are kept elsewhere
(`pool.remote_releases`), the folder is this machine's copy of those that were asked for.
"""

from __future__ import annotations

import fcntl
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import orjson
from pydantic import JsonValue

from configs.errors import ArtifactError, Conflict, NotFound
from configs.settings import Settings
from features.files import sync_tree
from pool.alias_log import AliasLog, Change
from pool.local_entries import LocalEntries
from pool.manifest import MANIFEST, Manifest, check_files, files_of, read_manifest
from pool.remote_releases import RemoteReleases

CHAMPION = "champion"
CHALLENGER = "challenger"
SHADOW = "shadow"
ALIASES = (CHAMPION, CHALLENGER, SHADOW)
ABANDONED_S = 7 * 86_400
_VERSION = re.compile(r"[1-9][0-9]{0,8}")


@dataclass
class Draft:
    """A release being written: its folder, and the version it got once it was published."""

    folder: Path
    version: str = ""


def open_releases(settings: Settings) -> ReleaseRepository:
    """The releases of the settings' dataset."""
    url = settings.releases.url
    return ReleaseRepository(settings.releases_folder, RemoteReleases(f"{url}/{settings.dataset}") if url else None)


class ReleaseRepository:
    """Releases of one dataset below ``folder``.

    Args:
        remote: where they are really kept; absent: in the folder.
    """

    def __init__(self, folder: Path, remote: RemoteReleases | None = None):
        self.folder = folder
        self._remote = remote
        self._log = AliasLog(remote or LocalEntries(folder / "aliases"), self._old_table)

    # --- reading

    def versions(self) -> list[str]:
        """Published versions, oldest first."""
        names = self._remote.versions() if self._remote else _names(self.folder)
        return sorted(filter(_VERSION.fullmatch, names), key=int)

    def path(self, version: str) -> Path:
        """Folder of a published version; raises NotFound when there is none of that name."""
        folder = self.folder / version
        if not _VERSION.fullmatch(version):
            raise self._not_found(version)
        if not folder.is_dir() and self._remote is not None and version in self.versions():
            with self._scratch() as scratch:
                self._remote.fetch(version, scratch)
                sync_tree(scratch)
                with suppress(OSError):  # another process fetched it meanwhile
                    scratch.rename(folder)
        if not folder.is_dir():
            raise self._not_found(version)
        return folder

    def manifest(self, version: str) -> Manifest:
        """Raises NotFound when there is no such version, and ArtifactError as `read_manifest`."""
        return read_manifest(self.path(version))

    def verify(self, version: str) -> Manifest:
        """Check every file against the manifest; raises ArtifactError naming the first that differs and how."""
        manifest = self.manifest(version)
        check_files(self.path(version), manifest)
        return manifest

    def is_whole(self, version: str) -> bool:
        """Whether a published version has its manifest, as far as can be seen here."""
        return self._remote is not None or (self.folder / version / MANIFEST).is_file()

    def hold(self, version: str) -> IO[bytes]:
        """An open file that keeps `remove` from the version until it is closed, or the process ends.

        Raises NotFound when the version is gone, and ArtifactError as `read_manifest`.
        """
        self.manifest(version)
        stream = (self.path(version) / MANIFEST).open("rb")
        fcntl.flock(stream, fcntl.LOCK_SH)
        self.path(version)  # it may have been removed while this waited
        return stream

    # --- publishing

    @contextmanager
    def draft(self, describe: dict[str, Any]) -> Iterator[Draft]:
        """Yield a draft to fill; on success it becomes the next version, on failure it vanishes.

        Args:
            describe: the manifest's fields other than format, version, time and files. It is read at
                the end, so figures measured while building can be added to it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._sweep()
        with self._scratch() as scratch:
            draft = Draft(scratch)
            yield draft
            draft.version = self._publish(scratch, describe)

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        self.folder.mkdir(parents=True, exist_ok=True)
        scratch = self.folder / f".draft-{uuid.uuid4().hex}"
        scratch.mkdir()
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _sweep(self) -> None:
        """Remove what builds that were killed left behind, once no build can still be writing it."""
        for draft in self.folder.glob(".draft-*"):
            with suppress(FileNotFoundError):  # a build that ends meanwhile takes its draft with it
                if time.time() - draft.stat().st_mtime > ABANDONED_S:
                    shutil.rmtree(draft, ignore_errors=True)

    def _publish(self, scratch: Path, describe: dict[str, Any]) -> str:
        from pool.model_config import write_configs  # onnx takes long to import; only builders need it

        write_configs(scratch / "models")
        files = files_of(scratch)
        number = int((self.versions() or ["0"])[-1]) + 1
        while True:
            if self._remote is not None and not self._remote.claim(str(number)):
                number += 1
                continue
            manifest = Manifest(version=str(number), created_at_s=time.time(), files=files, **describe)
            (scratch / MANIFEST).write_text(manifest.model_dump_json(indent=1))
            sync_tree(scratch)
            if self._remote is not None:
                self._remote.publish(str(number), scratch)
            try:
                scratch.rename(self.folder / str(number))
                return str(number)
            except OSError:  # another build took the number: a rename onto a filled folder fails
                if not (self.folder / str(number)).exists():
                    raise
                number += 1

    # --- aliases

    def aliases(self) -> dict[str, str]:
        """Versions by alias. Raises ArtifactError when the table cannot be read."""
        return self._log.table()

    def champion(self) -> str | None:
        """The serving version, or None before the first promotion."""
        return self.aliases().get(CHAMPION)

    def point(self, alias: str, version: str, reason: str = "", **more: Any) -> Change:
        """Let an alias name a version, atomically and durably. ``more`` as for `change`."""
        event = "promoted" if alias == CHAMPION else f"made {alias}"
        return self.change(event, version, {alias: version}, reason, **more)

    def change(
        self,
        event: str,
        version: str,
        aliases: Mapping[str, str | None],
        reason: str = "",
        expected: Mapping[str, str | None] | None = None,
        figures: Mapping[str, JsonValue] | None = None,
    ) -> Change:
        """Change some aliases at once, and keep why.

        Args:
            aliases: the version of each that changes, or None to take it away.
            expected: what some aliases must still be.
        Raises:
            NotFound: no such version, or no such alias. Conflict: somebody else changed them first.
        """
        for alias, each in aliases.items():
            if alias not in ALIASES:
                raise NotFound(f"no alias {alias!r:.80}; known aliases: {', '.join(ALIASES)}")
            if each is not None:
                self.path(each)

        def edit(table: dict[str, str]) -> dict[str, str]:
            for alias, wanted in (expected or {}).items():
                if table.get(alias) != wanted:
                    raise Conflict(
                        f"release {version} is not {event}: {alias} is {table.get(alias)} by now, not {wanted}; "
                        "see `recpool release list`"
                    )
            return {alias: each for alias, each in {**table, **aliases}.items() if each is not None}

        return self._log.change(event, version, reason, edit, figures)

    def note(self, event: str, version: str, reason: str, figures: Mapping[str, JsonValue] | None = None) -> Change:
        """Keep in a release's history what was decided about it; aliases stay."""
        return self._log.note(event, version, reason, figures)

    def history(self, version: str | None = None) -> list[Change]:
        """What was decided about one release, or about all, oldest first."""
        return [each for each in self._log.changes() if version in (None, each.version)]

    def _old_table(self) -> dict[str, str]:
        """The table of a repository that was last written before there was a log."""
        file = self.folder / "aliases.json"
        if not file.is_file():
            return {}
        try:
            return dict(orjson.loads(file.read_bytes()))
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{file}: not a readable alias table ({error}); remove it and promote again") from error

    # --- removing

    def remove(self, version: str) -> int:
        """Remove a version; returns the bytes that were freed on this machine.

        Raises:
            NotFound: no such version. Conflict: an alias names it, or a process on this machine holds it.
        """
        named = [alias for alias, each in self.aliases().items() if each == version]
        if named:
            raise Conflict(f"release {version} is the {' and '.join(named)}; promote another first")
        if self._remote is not None:
            self._remote.remove(version)
            if not (self.folder / version).is_dir():
                return 0
        folder = self.path(version)
        gone = self.folder / f".draft-gone-{uuid.uuid4().hex}"
        with (folder / MANIFEST).open("a+b") as stream:  # made where it is missing, so that all lock the same file
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Conflict(f"release {version} is in use by a running process of this machine") from None
            folder.rename(gone)
        freed_bytes = sum(file.stat().st_size for file in gone.rglob("*") if file.is_file())
        shutil.rmtree(gone, ignore_errors=True)
        return freed_bytes

    def _not_found(self, version: str) -> NotFound:
        return NotFound(f"no release {version!r:.80}; published: {self.versions() or 'none, run `recpool train`'}")


def _names(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()] if folder.is_dir() else []
