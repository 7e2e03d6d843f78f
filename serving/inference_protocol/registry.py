"""All models by name: what is loaded, what is not and why, loading and unloading.

A model is loaded anew before the old one is let go of, so requests never find none in between; what is damaged is
refused by name, and what served before it goes on serving. The registry looks at its sources again and again and
loads what is new there. Unloading by request is remembered in a file that all replicas of the service read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import orjson

from configs.errors import NotFound, RecpoolError
from features.files import write_atomically
from serving.inference_protocol.config import ModelConfig
from serving.inference_protocol.models import Model
from serving.inference_protocol.sources import Definition, Source, Stamp, checked_name

log = logging.getLogger("recpool.inference")
State = Literal["READY", "UNAVAILABLE", "LOADING", "UNLOADING"]
SETTLED_S = 1.0
"""A folder whose newest file is younger may still be being copied; by request it is loaded all the same."""
LoadModel = Callable[[ModelConfig, str, Path], Model]
"""From a configuration, a version and the version's file."""


class LoadFailed(RecpoolError):
    """A model that cannot be loaded, or unloaded; as Triton has it an error of the server: 500, INTERNAL."""


@dataclass(frozen=True)
class IndexEntry:
    """A version of a model, or a model of which none is there (``version`` is empty then)."""

    name: str
    version: str
    state: State
    reason: str = ""


@dataclass
class _Entry:
    """What is known of a name.

    Attributes:
        versions: that serve, oldest first.
        stamp: of the files that were loaded last, or failed to.
    """

    versions: dict[str, Model] = field(default_factory=dict)
    stamp: Stamp = ()
    failure: str = ""
    is_loading: bool = False


class ModelRegistry:
    """Every method may be called by any thread; those that load block until it is done.

    Args:
        sources: asked in this order for a name.
        board: file that remembers what was unloaded by request.
        changed: told the models that serve whenever they are others.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        load: LoadModel,
        board: Path | None = None,
        changed: Callable[[Mapping[str, Model]], None] = lambda models: None,
    ):
        self._sources, self._load, self._board, self._changed = sources, load, board, changed
        self._entries: dict[str, _Entry] = {}
        self._unloaded: set[str] = set()
        self._loading = threading.RLock()

    def model(self, name: str, version: str = "") -> Model:
        """The model that takes a request; without a version the newest.

        Raises:
            NotFound: there is none, or it is not loaded; in Triton's words.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise NotFound(f"Request for unknown model: '{name:.100}' is not found")
        versions = entry.versions
        if not versions:
            raise NotFound(f"Request for unknown model: '{name}' has no available versions")
        if not version:
            return next(reversed(versions.values()))
        if version not in versions:
            raise NotFound(f"Request for unknown model: '{name}' version {version:.40} is not found")
        return versions[version]

    def versions(self, name: str) -> tuple[str, ...]:
        return tuple(self._entries[name].versions) if name in self._entries else ()

    def models(self) -> list[Model]:
        """All that serve, by name and version."""
        return [model for _, entry in sorted(self._entries.items()) for model in entry.versions.values()]

    def index(self, only_ready: bool = False) -> list[IndexEntry]:
        found = []
        for name, entry in sorted(self._entries.items()):
            found += [IndexEntry(name, version, "READY", entry.failure) for version in entry.versions]
            if not entry.versions and not only_ready:
                state: State = "LOADING" if entry.is_loading else "UNAVAILABLE"
                found.append(IndexEntry(name, "", state, entry.failure or "unloaded"))
        return found

    def load(self, name: str) -> None:
        """Load a model, or load it anew, from what lies in its source now.

        Raises:
            LoadFailed: no source has it, or it cannot be loaded; what served before still does.
        """
        checked_name(name)
        with self._loading:
            source = self._source(name)
            if source is None:
                raise LoadFailed(f"failed to load '{name}', failed to poll from model repository")
            self._remember(name, unloaded=False)
            entry = self._entries.setdefault(name, _Entry())
            self._replace(name, entry, source)
            if entry.failure:
                raise LoadFailed(f"failed to load '{name}', {entry.failure}")

    def unload(self, name: str) -> None:
        """Let go of a model once it has answered what waits; it stays unloaded until it is loaded by request.

        Raises:
            LoadFailed: there is no such model.
        """
        checked_name(name)
        with self._loading:
            entry = self._entries.get(name)
            if entry is None:
                raise LoadFailed(f"failed to unload '{name}', there is no such model")
            self._remember(name, unloaded=True)
            self._drop(name, entry)

    def poll(self) -> None:
        """Load what is new or has changed, and let go of what is gone; failures are kept as the model's reason."""
        with self._loading:
            self._unloaded = self._read_board()
            present = {name: source for source in reversed(self._sources) for name in source.names()}
            for name, entry in list(self._entries.items()):
                if name not in present or name in self._unloaded:
                    self._drop(name, entry)
                if name not in present:
                    del self._entries[name]
            for name, source in sorted(present.items()):
                self._follow(name, source)

    def close(self) -> None:
        with self._loading:
            for name, entry in self._entries.items():
                self._drop(name, entry)

    def _follow(self, name: str, source: Source) -> None:
        entry = self._entries.setdefault(name, _Entry())
        if name in self._unloaded:
            return
        stamp = source.stamp(name)
        if stamp != entry.stamp and _is_settled(stamp):
            self._replace(name, entry, source)

    def _replace(self, name: str, entry: _Entry, source: Source) -> None:
        """Load what the source has, then let go of what served before; on failure that serves on."""
        entry.stamp, entry.is_loading, entry.failure = source.stamp(name), True, ""
        loaded: dict[str, Model] = {}
        definition: Definition | None = None
        try:
            definition = source.read(name)
            for version, file in definition.files.items():
                config = type(definition.config)()
                config.CopyFrom(definition.config)
                loaded[version] = self._load(config, version, file)
        except RecpoolError as error:
            entry.failure = _told(error, definition)
        except Exception as error:  # a file that makes a library fail in a way of its own
            log.exception("model %s", name)
            entry.failure = f"model '{name}': {type(error).__name__}"
        entry.is_loading = False
        if entry.failure:
            log.warning("%s not loaded: %s", name, entry.failure)
            old = loaded
        else:
            old, entry.versions = entry.versions, loaded
            log.info("%s serves versions %s", name, ", ".join(loaded))
            self._tell()
        for model in old.values():
            model.close()

    def _drop(self, name: str, entry: _Entry) -> None:
        old, entry.versions, entry.stamp, entry.failure = entry.versions, {}, (), ""
        if old:
            log.info("%s is unloaded", name)
            self._tell()
        for model in old.values():
            model.close()

    def _source(self, name: str) -> Source | None:
        return next((source for source in self._sources if source.stamp(name)), None)

    def _tell(self) -> None:
        self._changed({f"{model.name}/{model.version}": model for model in self.models()})

    def _remember(self, name: str, unloaded: bool) -> None:
        known = self._read_board()
        self._unloaded = known | {name} if unloaded else known - {name}
        if self._board is not None and self._unloaded != known:
            self._board.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._board, orjson.dumps(sorted(self._unloaded)))

    def _read_board(self) -> set[str]:
        if self._board is None:
            return self._unloaded
        try:
            return set(orjson.loads(self._board.read_bytes()))
        except FileNotFoundError:
            return set()
        except (OSError, ValueError):
            log.warning("%s cannot be read; what was unloaded stays so", self._board)
            return self._unloaded


def _is_settled(stamp: Stamp) -> bool:
    newest_s = max((changed_ns for _, _, changed_ns in stamp), default=0) / 1e9
    return not 0 <= time.time() - newest_s < SETTLED_S


def _told(error: RecpoolError, definition: Definition | None) -> str:
    """A reason for everybody: without the folder that the repository lies in."""
    folders = {str(file.parents[2]) for file in definition.files.values()} if definition else ()
    message = error.message
    for folder in folders:
        message = message.replace(f"{folder}/", "")
    return message
