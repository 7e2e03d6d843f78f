"""Where models come from: a folder in Triton's layout, and the release that serves.

    <folder>/<model>/config.pbtxt          optional for ONNX: completed from the graph
    <folder>/<model>/<version>/model.onnx  or model.pt; versions are numbers from 1

Whoever can write to the folder decides what runs here: a TorchScript file is a program. Nothing is ever put there
over the network.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from configs.errors import ArtifactError, NotFound, RecpoolError
from pool.repository import ReleaseRepository
from serving.inference_protocol.config import FILES, ModelConfig, platform_of, read_config

CONFIG_FILE = "config.pbtxt"
MODEL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")
_VERSION = re.compile(r"[1-9][0-9]{0,17}")

Stamp = tuple[tuple[str, int, int], ...]
"""Name, size and time of change of each file: other files, another stamp."""


@dataclass(frozen=True)
class Definition:
    """A model as it lies there: its configuration, and the file of each version that is to be served."""

    config: ModelConfig
    files: Mapping[str, Path]


class Source(Protocol):
    """Some models by name."""

    def names(self) -> set[str]: ...

    def stamp(self, name: str) -> Stamp:
        """Of the files of a model; empty when there is none of that name."""
        ...

    def read(self, name: str) -> Definition:
        """Raises ArtifactError saying what is wrong with it."""
        ...


class FolderSource:
    """The models of a folder; an absent folder has none."""

    def __init__(self, folder: Path):
        self._folder = folder

    def names(self) -> set[str]:
        if not self._folder.is_dir():
            return set()
        return {path.name for path in self._folder.iterdir() if MODEL_NAME.fullmatch(path.name) and path.is_dir()}

    def stamp(self, name: str) -> Stamp:
        folder = self._folder / checked_name(name)
        if not folder.is_dir():
            return ()
        found = []
        for path in sorted((folder / CONFIG_FILE, *folder.glob("*/*"))):
            try:
                seen = path.stat()
            except OSError:  # none, or just being replaced
                continue
            found.append((str(path.relative_to(folder)), seen.st_size, seen.st_mtime_ns))
        return tuple(found) or ((name, 0, 0),)

    def read(self, name: str) -> Definition:
        folder = self._folder / checked_name(name)
        config = read_config(folder / CONFIG_FILE, name)
        present = {path.name: path for path in folder.iterdir() if _VERSION.fullmatch(path.name) and path.is_dir()}
        if not present:
            raise ArtifactError(f"model '{name}': at least one version must be available: a folder such as {name}/1")
        newest = max(present, key=int)
        config.platform = platform_of(config, [path.name for path in present[newest].iterdir()])
        file_name = config.default_model_filename or FILES[config.platform]
        return Definition(
            config, {version: present[version] / file_name for version in wanted_versions(config, present)}
        )


class ReleaseSource:
    """The funnel's own models, of the release that serves; their version is the release's.

    Args:
        repository: of the releases; the champion's models are served. It is asked whenever all names are.
    """

    def __init__(self, repository: ReleaseRepository):
        self._repository = repository
        self._models: Path | None = None

    def names(self) -> set[str]:
        self._models = self._champions()
        if self._models is None:
            return set()
        return {path.name for path in self._models.iterdir() if MODEL_NAME.fullmatch(path.name) and path.is_dir()}

    def stamp(self, name: str) -> Stamp:
        """Nothing of a release ever changes but which of them serves."""
        if self._models is None or not (self._models / checked_name(name)).is_dir():
            return ()
        return ((str(self._models), 0, 0),)

    def read(self, name: str) -> Definition:
        """The configuration beside the model is for Triton, and batches nothing; here the graph says what can be."""
        if self._models is None:
            raise ArtifactError(f"model '{name}': no release has been promoted")
        config = read_config(None, checked_name(name))
        config.platform = "onnxruntime_onnx"
        return Definition(config, {self._models.parent.name: self._models / name / "1" / FILES["onnxruntime_onnx"]})

    def _champions(self) -> Path | None:
        try:
            champion = self._repository.champion()
            folder = self._repository.path(champion) / "models" if champion else None
        except RecpoolError:  # an alias table that cannot be read, or names what is gone
            return self._models
        return folder if folder is not None and folder.is_dir() else None


def checked_name(name: str) -> str:
    """Raises NotFound for what cannot be a model's name; a name is never taken for a path."""
    if not MODEL_NAME.fullmatch(name):
        raise NotFound(f"Request for unknown model: {name!r:.100} is not a model's name")
    return name


def wanted_versions(config: ModelConfig, present: Mapping[str, Path]) -> list[str]:
    """By the configuration's version policy; the newest without one.

    Raises:
        ArtifactError: none of the specific versions is there.
    """
    ordered = sorted(present, key=int)
    policy = config.version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return ordered
    if choice == "specific":
        wanted = [version for version in ordered if int(version) in policy.specific.versions]
        if not wanted:
            raise ArtifactError(
                f"model '{config.name}': version_policy: none of versions {list(policy.specific.versions)} is there, "
                f"but {', '.join(ordered)}"
            )
        return wanted
    return ordered[-max(1, policy.latest.num_versions) :]
