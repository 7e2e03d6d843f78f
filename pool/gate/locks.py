"""Locks on bytes of a file that the kernel takes back when their holder dies, however it dies.

They are Linux's open file description locks (fcntl(2), F_OFD_SETLK): each `LockFile` is a description of its own,
so two of them exclude each other within one process too, and closing some other descriptor of the file frees
nothing. A forked child would share the description, and with it keep a dead parent's locks: it gets a fresh one.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
import weakref
from functools import cache

POLL_S = 0.0002
_FLOCK = struct.Struct("hhqqi4x")
"""struct flock on 64-bit Linux: type, whence, start, length, pid (0 for these locks)."""


class LockFile:
    """One open description of a file, and the bytes locked through it. Not for two threads at once."""

    def __init__(self, descriptor: int):
        """A new description of the file that is open as descriptor, also where its name is gone."""
        self._fd = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        _open_files.add(self)

    def another(self) -> LockFile:
        """One more description of the same file."""
        return LockFile(self._fd)

    def try_lock(self, byte: int) -> bool:
        """Take a byte's lock if no other description holds it; the byte need not exist."""
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _request(fcntl.F_WRLCK, byte))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def lock(self, byte: int, timeout_s: float) -> bool:
        """`try_lock` until it works or the time is over."""
        deadline_s = time.monotonic() + timeout_s
        while not self.try_lock(byte):
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(POLL_S)
        return True

    def unlock(self, byte: int) -> None:
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _request(fcntl.F_UNLCK, byte))

    def is_held_elsewhere(self, byte: int) -> bool:
        """Whether another description holds a byte's lock, without touching it."""
        answer = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, _request(fcntl.F_WRLCK, byte))
        return _FLOCK.unpack(answer)[0] != fcntl.F_UNLCK

    def close(self) -> None:
        """Give back every lock held here."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        _open_files.discard(self)

    def _renew(self) -> None:
        """A description of our own in place of the one shared with the parent, under the same number."""
        fresh = os.open(f"/proc/self/fd/{self._fd}", os.O_RDWR | os.O_CLOEXEC)
        os.dup2(fresh, self._fd, inheritable=False)
        os.close(fresh)


@cache
def _request(kind: int, byte: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0)


_open_files: weakref.WeakSet[LockFile] = weakref.WeakSet()


def _renew_all() -> None:
    for file in list(_open_files):
        file._renew()


os.register_at_fork(after_in_child=_renew_all)
