"""Hangs up for a process that is going to be killed, so that those who wait for it learn of it at once.

The kernel frees the memory of a process that dies before it closes its files: one with a gigabyte keeps its
connections for more than a tenth of a second after its death, and the kernel accepts new ones for it meanwhile. A copy
of a descriptor (pidfd_getfd(2), Linux 5.6) is enough to shut a connection down; those of a process that is dying
already are not given out. Where the kernel does not permit that (ptrace(2)), connections end with the process.

Only the standard library is used, as in all that the guard of HAProxy runs.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator
from contextlib import suppress

PIDFD_GETFD = 438
"""The system call's number, the same on every architecture."""
_libc = ctypes.CDLL(None, use_errno=True)


def hang_up(pid: int, port: int) -> int:
    """Shut down the process's TCP sockets on this port, the one that listens first; returns how many there were.

    Never raises: a process that is gone, or that the kernel lets nobody look into, has none.
    """
    sockets = sorted(_sockets(pid, port), key=_listens, reverse=True)
    for each in sockets:
        with each, suppress(OSError):  # it may be closed meanwhile
            each.shutdown(socket.SHUT_RDWR)
    return len(sockets)


def _sockets(pid: int, port: int) -> Iterator[socket.socket]:
    with suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 - names are all that is wanted
                with suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):  # noqa: PTH115
                        copy = socket.socket(fileno=_copied(handle, int(name)))
                        if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.getsockname()[1] == port:
                            yield copy
                        else:
                            copy.close()
        finally:
            os.close(handle)


def _copied(handle: int, descriptor: int) -> int:
    """A descriptor of this process for one of the other. Raises OSError."""
    found = _libc.syscall(PIDFD_GETFD, handle, descriptor, 0)
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


def _listens(each: socket.socket) -> bool:
    return bool(each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
