"""The release repository: numbered, checksummed, atomic directories, and the aliases that point at them.

    <folder>/aliases.json          {"champion": "3"}
    <folder>/<version>/manifest.json
    <folder>/<version>/models/<name>/1/model.onnx     Triton's model-repository layout
    <folder>/<version>/...         tables, index, encoder

A version is visible only when it is complete: it is written to a hidden folder, checksummed, synced
and renamed. Nothing inside a version ever changes afterwards.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from configs.errors import ArtifactError, NotFound
from features.files import sync_tree, write_atomically

CHAMPION = "champion"
FORMAT = 2
"""2: the rankers and the user tower take histories of any length."""
ABANDONED_S = 7 * 86_400
_VERSION = re.compile(r"[1-9][0-9]{0,8}")


class FileEntry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str
    bytes: int


class Manifest(BaseModel):
    """What a release is and holds. ``files`` maps each path below the version folder to its checksum."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    version: str
    created_at_s: float
    dataset: str
    recipe: str
    items: int
    users: int
    objectives: tuple[str, ...]
    metrics: dict[str, Any] = {}
    files: dict[str, FileEntry]


@dataclass
class Draft:
    """A release being written: its folder, and the version it got once it was published."""

    folder: Path
    version: str = ""


class ReleaseRepository:
    """Releases of one dataset below ``folder``."""

    def __init__(self, folder: Path):
        self.folder = folder

    def versions(self) -> list[str]:
        """Published versions, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted((p.name for p in self.folder.iterdir() if _VERSION.fullmatch(p.name)), key=int)

    def path(self, version: str) -> Path:
        """Folder of a published version; raises NotFound when there is none of that name."""
        folder = self.folder / version
        if not _VERSION.fullmatch(version) or not folder.is_dir():
            raise NotFound(f"no release {version!r:.80}; published: {self.versions() or 'none, run `recpool train`'}")
        return folder

    def manifest(self, version: str) -> Manifest:
        """Raises ArtifactError when the manifest is missing, unreadable or of another format."""
        file = self.path(version) / "manifest.json"
        try:
            manifest = Manifest.model_validate_json(file.read_bytes())
        except (OSError, ValidationError) as error:
            raise ArtifactError(f"{file}: not a readable manifest ({error}); publish the release again") from error
        if manifest.format != FORMAT or manifest.version != version:
            raise ArtifactError(
                f"{file}: says version {manifest.version} in format {manifest.format}, not {version} in {FORMAT}; "
                "run `recpool train` for a release of this format"
            )
        return manifest

    def verify(self, version: str) -> Manifest:
        """Check every file against the manifest; raises ArtifactError naming the first that differs and how."""
        folder, manifest = self.path(version), self.manifest(version)
        for name, entry in manifest.files.items():
            file = folder / name
            if not file.is_file():
                raise ArtifactError(f"release {version}: {name} is missing; publish the release again")
            if file.stat().st_size != entry.bytes:
                raise ArtifactError(f"release {version}: {name} has {file.stat().st_size} bytes, not {entry.bytes}")
            if _sha256(file) != entry.sha256:
                raise ArtifactError(f"release {version}: {name} differs from its checksum; it was changed or damaged")
        return manifest

    @contextmanager
    def draft(self, describe: dict[str, Any]) -> Iterator[Draft]:
        """Yield a draft to fill; on success it becomes the next version, on failure it vanishes.

        Args:
            describe: the manifest's fields other than format, version, time and files. It is read at
                the end, so figures measured while building can be added to it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._sweep()
        scratch = self.folder / f".draft-{uuid.uuid4().hex}"
        scratch.mkdir()
        try:
            draft = Draft(scratch)
            yield draft
            draft.version = self._publish(scratch, describe)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _sweep(self) -> None:
        """Remove what builds that were killed left behind, once no build can still be writing it."""
        for draft in self.folder.glob(".draft-*"):
            with suppress(FileNotFoundError):  # a build that ends meanwhile takes its draft with it
                if time.time() - draft.stat().st_mtime > ABANDONED_S:
                    shutil.rmtree(draft, ignore_errors=True)

    def _publish(self, scratch: Path, describe: dict[str, Any]) -> str:
        files = {
            str(path.relative_to(scratch)): FileEntry(sha256=_sha256(path), bytes=path.stat().st_size)
            for path in sorted(scratch.rglob("*"))
            if path.is_file()
        }
        number = int((self.versions() or ["0"])[-1]) + 1
        while True:
            manifest = Manifest(version=str(number), created_at_s=time.time(), files=files, **describe)
            (scratch / "manifest.json").write_text(manifest.model_dump_json(indent=1))
            sync_tree(scratch)
            try:
                scratch.rename(self.folder / str(number))
                return str(number)
            except OSError:  # another build took the number: a rename onto a filled folder fails
                if not (self.folder / str(number)).exists():
                    raise
                number += 1

    def aliases(self) -> dict[str, str]:
        file = self.folder / "aliases.json"
        if not file.is_file():
            return {}
        try:
            return dict(orjson.loads(file.read_bytes()))
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{file}: not a readable alias table ({error}); remove it and promote again") from error

    def point(self, alias: str, version: str) -> None:
        """Let an alias name a version, atomically."""
        self.path(version)
        write_atomically(self.folder / "aliases.json", orjson.dumps({**self.aliases(), alias: version}))

    def champion(self) -> str | None:
        """The serving version, or None before the first promotion."""
        return self.aliases().get(CHAMPION)


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
