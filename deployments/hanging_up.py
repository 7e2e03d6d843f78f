"""Hangs up for a process that is dying or about to be killed, so that those who wait for it learn of it at once.

The kernel frees the memory of a process that dies before it closes its files: one with a gigabyte keeps its
connections for more than a tenth of a second after its death, and the kernel accepts new ones for it meanwhile.
Sockets may be closed from outside (SOCK_DESTROY of sock_diag(7), as `ss --kill` does), whatever their owner is up to.
That takes CAP_NET_ADMIN and a kernel with CONFIG_INET_DIAG_DESTROY; without them connections end with the process.

Only the standard library is used, as in all that the guard of HAProxy runs.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TABLES = {"/proc/net/tcp": socket.AF_INET, "/proc/net/tcp6": socket.AF_INET6}
LISTENING, GONE = "0A", {"06", "07"}
"""States as the tables have them (proc(5)); TIME_WAIT and CLOSE are nobody's any more."""
NETLINK_SOCK_DIAG, SOCK_DESTROY, REQUEST_AND_ACK = 4, 21, 0x1 | 0x4
HEADER = struct.Struct("=IHHII")
"""Of a netlink message: length, type, flags, sequence, port."""
REQUEST = struct.Struct("=BBxxI2s2s16s16sIII")
"""Family, protocol, states, the two ports and addresses, interface, and an unknown cookie (linux/inet_diag.h)."""
ANY, UNKNOWN = 0xFFFFFFFF, 0xFFFFFFFF


@dataclass(frozen=True)
class TcpSocket:
    """As the kernel's tables have it: ports in network order, addresses padded to 16 bytes."""

    family: int
    state: str
    inode: str
    near: tuple[bytes, bytes]
    far: tuple[bytes, bytes]

    @property
    def port(self) -> int:
        return int.from_bytes(self.near[1], "big")


def tcp_sockets() -> Iterator[TcpSocket]:
    """Each TCP socket of this network namespace."""
    for table, family in TABLES.items():
        with suppress(OSError):
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                yield TcpSocket(family, fields[3], fields[9], _endpoint(fields[1]), _endpoint(fields[2]))


def hang_up(port: int) -> int:
    """Close the TCP sockets that have this port on their side, the one that listens first; returns how many there were.

    Never raises: where the kernel does not let this process close them, none is.
    """
    found = [each for each in tcp_sockets() if each.port == port and each.state not in GONE]
    closed = 0
    with suppress(OSError), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
        for each in sorted(found, key=lambda one: one.state != LISTENING):
            kernel.send(_destroying(each))
            closed += _error_in(kernel.recv(4096)) == 0
    return closed


def _endpoint(text: str) -> tuple[bytes, bytes]:
    """``0100007F:1F90``: words of an address as this machine reads them, and a port."""
    address, _, port = text.partition(":")
    words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
    return struct.pack(f"={len(words)}I", *words).ljust(16, b"\0"), int(port, 16).to_bytes(2, "big")


def _destroying(each: TcpSocket) -> bytes:
    (near, near_port), (far, far_port) = each.near, each.far
    body = REQUEST.pack(each.family, socket.IPPROTO_TCP, ANY, near_port, far_port, near, far, 0, UNKNOWN, UNKNOWN)
    return HEADER.pack(HEADER.size + len(body), SOCK_DESTROY, REQUEST_AND_ACK, 0, os.getpid()) + body


def _error_in(reply: bytes) -> int:
    """The negative errno of an acknowledgement; 0: it was done."""
    return struct.unpack_from("=i", reply, HEADER.size)[0]
