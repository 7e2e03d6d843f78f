"""Measured latency profiles on disk: one JSON file for each model, version and kind of device.

    <folder>/<model>@<version>@<kind>.json    {"batch_rows": [1, 8], "p50_ms": [2.0, 5.1], "p99_ms": [2.9, 7.4], …}

The model may be a name with a version, or the digest of a file without one.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

from pydantic import ValidationError

from configs.errors import ArtifactError, InvalidRequest
from features.files import write_atomically
from pool.device import DeviceKind
from pool.policy.latency import LatencyProfile

MOST_PROFILES = 512
"""A profile is a few hundred bytes; so many cover years of releases."""
MOST_BYTES = 1 << 20
"""No profile is larger; what is was not written here."""
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}"
_NAME = re.compile(_PART)
_FILE = re.compile(rf"(?P<model>{_PART})@(?P<version>{_PART}|)@(?P<kind>{'|'.join(get_args(DeviceKind))})\.json")


@dataclass(frozen=True)
class ProfileKey:
    """What was measured where.

    Attributes:
        model: name, or digest of the model file.
        version: of the name; empty for a digest.

    Raises:
        InvalidRequest: a part cannot be part of a file's name, or there is no such kind.
    """

    model: str
    kind: DeviceKind
    version: str = ""

    def __post_init__(self) -> None:
        for field, value in (("model", self.model), ("version", self.version)):
            if not _NAME.fullmatch(value) and (field == "model" or value):
                raise InvalidRequest(
                    f"{field}: {value!r:.90} names no file; use up to 80 letters, digits, dots, dashes and "
                    f"underscores, a letter or digit first",
                    field,
                )
        if self.kind not in get_args(DeviceKind):
            raise InvalidRequest(f"kind: {self.kind!r:.90} is none of {list(get_args(DeviceKind))}", "kind")

    @property
    def file_name(self) -> str:
        return f"{self.model}@{self.version}@{self.kind}.json"


class ProfileStore:
    """Profiles below one folder. A reader sees the old file or the new one, never a part of it.

    Args:
        most: profiles that are kept; those measured longest ago go first.
    """

    def __init__(self, folder: Path, most: int = MOST_PROFILES):
        self.folder, self._most = folder, most

    def put(self, key: ProfileKey, profile: LatencyProfile) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / key.file_name, profile.model_dump_json().encode())
        self._forget_oldest()

    def get(self, key: ProfileKey) -> LatencyProfile | None:
        """None when it was not measured; raises ArtifactError when the file is damaged."""
        return _read(self.folder / key.file_name)

    def profiles(self, model: str, version: str = "") -> dict[DeviceKind, LatencyProfile]:
        """Of one model, by kind of device; kinds that were not measured are left out."""
        found = {kind: self.get(ProfileKey(model, kind, version)) for kind in get_args(DeviceKind)}
        return {kind: profile for kind, profile in found.items() if profile is not None}

    def keys(self) -> list[ProfileKey]:
        """All that was measured, in the order of file names; other files of the folder are passed over."""
        return [key for path in sorted(self.folder.glob("*@*@*.json")) if (key := _key(path.name)) is not None]

    def _forget_oldest(self) -> None:
        files = [self.folder / key.file_name for key in self.keys()]
        if len(files) > self._most:
            with suppress(FileNotFoundError):  # another writer forgets the same ones
                files.sort(key=lambda file: file.stat().st_mtime_ns)
            for file in files[: len(files) - self._most]:
                file.unlink(missing_ok=True)


def _key(name: str) -> ProfileKey | None:
    parts = _FILE.fullmatch(name)
    return ProfileKey(parts["model"], cast(DeviceKind, parts["kind"]), parts["version"]) if parts else None


def _read(file: Path) -> LatencyProfile | None:
    try:
        with file.open("rb") as stream:
            return LatencyProfile.model_validate_json(stream.read(MOST_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise ArtifactError(f"{file}: not a readable profile ({error}); remove it and measure again") from error
