"""A caller of a stopped process learns at once that no answer will come, and nobody new gets through to it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from deployments.hanging_up import hang_up

PROCESS = """
import socket, sys
listening = socket.create_server(("127.0.0.1", 0))
other = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], other.getsockname()[1], flush=True)
caller = listening.accept()[0]
print("accepted", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def process():
    with subprocess.Popen([sys.executable, "-c", PROCESS], stdin=-1, stdout=-1, text=True) as process:
        yield process
        process.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="the kernel lets only root close the sockets of others")
def test_connections_of_a_stopped_process_end_and_other_ports_stay(process):
    port, other = map(int, process.stdout.readline().split())
    with socket.create_connection(("127.0.0.1", port)) as caller:
        process.stdout.readline()
        os.kill(process.pid, signal.SIGSTOP)
        caller.sendall(b"a request that is never read")
        assert hang_up(port) == 2
        caller.settimeout(20)
        with pytest.raises(ConnectionResetError):
            caller.recv(1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    socket.create_connection(("127.0.0.1", other)).close()
    assert process.poll() is None


def test_a_process_that_is_gone_has_no_connections(process):
    port = int(process.stdout.readline().split()[0])
    process.kill()
    process.wait()
    assert hang_up(port) == 0
