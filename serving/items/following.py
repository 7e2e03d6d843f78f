"""Every release in this process follows the changes of items, by one thread that looks for new ones."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from weakref import WeakSet

from configs.errors import Unavailable
from configs.settings import Settings
from features.item_changes import ItemChanges
from features.live_catalogue import LiveCatalogue
from serving.release import Release

log = logging.getLogger("recpool.items")

POLL_S = 0.1
"""A tenth of the second within which a change is to be seen everywhere; a look costs some tens of microseconds."""
APPLIED_AT_ONCE = 500

_followers: dict[Path, _Follower] = {}
_lock = threading.Lock()


def follow(settings: Settings, release: Release) -> None:
    """Bring a release up to date, and keep it so for as long as it is in memory.

    Call it when all its parts are loaded, before it serves: what was deleted must never be returned. When the
    changes cannot be read now it is logged, and done as soon as they can.
    """
    if not isinstance(release.catalogue, LiveCatalogue):
        return
    with _lock:
        file = settings.item_changes_file
        follower = _followers.setdefault(file, _Follower(file))
        follower.add(release.catalogue)


class _Follower:
    def __init__(self, file: Path):
        self._file = file
        self._catalogues: WeakSet[LiveCatalogue] = WeakSet()
        self._lock = threading.Lock()
        self._changes: ItemChanges | None = None
        self._thread: threading.Thread | None = None
        self._failed = False

    def add(self, catalogue: LiveCatalogue) -> None:
        self._bring(catalogue)
        with self._lock:
            self._catalogues.add(catalogue)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="item-changes", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(POLL_S)
            with self._lock:
                catalogues = list(self._catalogues)
                if not catalogues:
                    self._thread = None
                    return
            while catalogues:  # none is held while nobody else holds it
                self._bring(catalogues.pop())

    def _bring(self, catalogue: LiveCatalogue) -> None:
        """Apply what is new; what fails is tried again at the next look."""
        try:
            self._changes = self._changes or ItemChanges(self._file)
            while states := self._changes.after(catalogue.version, APPLIED_AT_ONCE):
                catalogue.apply(states)
            self._failed = False
        except Exception as error:  # the thread must go on; said once, not ten times a second
            if not self._failed:
                log.error("changes of items are not applied: %s", error, exc_info=not isinstance(error, Unavailable))
            self._failed = True
