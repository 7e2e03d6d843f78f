"""The manifest of a release: what it is and what it holds, read strictly."""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePosixPath
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from configs.errors import ArtifactError

FORMAT = 2
"""2: the rankers and the user tower take histories of any length."""
MANIFEST = "manifest.json"


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

    @property
    def total_bytes(self) -> int:
        return sum(entry.bytes for entry in self.files.values())


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a version's folder.

    Raises:
        ArtifactError: it is missing, unreadable, of another format or of another version, or names a file outside of
            the release; says which field, and what to do.
    """
    file = folder / MANIFEST
    try:
        raw = orjson.loads(file.read_bytes())
        _check_format(file, raw.get("format") if isinstance(raw, dict) else None)
        manifest = Manifest.model_validate(raw)
    except FileNotFoundError:
        raise ArtifactError(
            f"{file}: missing, the release was written by half or damaged; publish it again, or remove it by "
            "`recpool release gc`"
        ) from None
    except (OSError, ValueError) as error:
        raise ArtifactError(
            f"{file}: not a readable manifest ({first_fault(error)}); publish the release again"
        ) from error
    if manifest.version != folder.name:
        raise ArtifactError(f"{file}: version is {manifest.version}, its folder {folder.name}; publish it again")
    for name in manifest.files:
        if not _is_inside(name):
            raise ArtifactError(f"{file}: files names {name!r:.200}, which lies outside of the release; do not use it")
    return manifest


def check_files(folder: Path, manifest: Manifest) -> None:
    """Raise ArtifactError naming the first file that differs from the manifest, and how."""
    release = f"release {manifest.version}"
    for name, entry in manifest.files.items():
        file = folder / name
        if not file.is_file():
            raise ArtifactError(f"{release}: {name} is missing; publish the release again")
        if file.stat().st_size != entry.bytes:
            raise ArtifactError(f"{release}: {name} has {file.stat().st_size} bytes, not {entry.bytes}")
        if sha256(file) != entry.sha256:
            raise ArtifactError(f"{release}: {name} differs from its checksum; it was changed or damaged")


def files_of(folder: Path) -> dict[str, FileEntry]:
    """Every file below a folder, by its path there."""
    return {
        str(path.relative_to(folder)): FileEntry(sha256=sha256(path), bytes=path.stat().st_size)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def first_fault(error: Exception) -> str:
    """The first fault of a validation by its field; else the error itself."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc'])) or 'manifest'}: {first['msg']}"
    return str(error)


def _check_format(file: Path, written: Any) -> None:
    """Raise ArtifactError for a manifest of another schema, which its own rules would refuse less clearly."""
    if isinstance(written, int) and written > FORMAT:
        raise ArtifactError(
            f"{file}: format is {written}, and this version reads {FORMAT}; a newer Recpool wrote it: update this one, "
            "or train here"
        )
    if written != FORMAT:
        raise ArtifactError(
            f"{file}: format is {written!r:.80}, not {FORMAT}; run `recpool train` for a release of this format"
        )


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\\" not in name
