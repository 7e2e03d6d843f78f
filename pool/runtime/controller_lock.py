"""One controller at a time works on a folder: the next waits until the one before has ended.

A kernel lock, so that it goes with its process. It keeps a second controller on the same machine from taking over from
one that works. On another machine, or where the file system has no locks, epochs alone keep the two apart.
"""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

log = logging.getLogger("recpool.pool")
FILE = "controller.lock"


class ControllerLock:
    """A process's hand on the folder of a pool; another object of the same process takes it away from this one."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / FILE).open("a+", encoding="ascii")

    def take(self) -> str | None:
        """Have it until `release` or the end of this process, and return None; or say who has it."""
        try:
            # Of the process, unlike flock's: a child that inherits the file does not keep it.
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # POSIX allows either
            self._file.seek(0)
            return f"process {self._file.read(20) or 'unknown'}"
        except OSError as error:
            log.warning("%s: no lock (%s); epochs alone keep a second controller out", self._file.name, error)
            return None
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()
        return None

    def release(self) -> None:
        self._file.close()
