"""HAProxy is told of roles when they change, and again every second, in a file and by its sockets."""

from __future__ import annotations

import json
import socket
import threading

import pytest

from deployments.haproxy_launcher import ROLES, standing_by
from deployments.ingress_roles import REPEAT_S, Announcer

CONFIG = """global
    stats socket {socket} mode 666 level admin
backend http-recpool
    server SERVE_REPLICA_recpool-gateway-abc 127.0.0.1:1 check weight 0
    server SERVE_REPLICA_recpool-gateway-abc-standby 127.0.0.1:1 no-check backup
    server SERVE_REPLICA_recpool-gateway-def 127.0.0.1:2 check
    server SERVE_PROXY_ACTOR-abc 127.0.0.1:3 check backup
"""


class FakeHAProxy:
    """Keeps what it is told by its admin socket."""

    def __init__(self, folder):
        self.told: list[str] = []
        folder.mkdir()
        (folder / "haproxy.cfg").write_text(CONFIG.format(socket=folder / "s"))
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(folder / "s"))
        self._door.listen()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            line, _ = self._door.accept()
            with line:
                self.told.append(line.recv(65_536).decode().strip())


@pytest.fixture
def haproxy(tmp_path) -> FakeHAProxy:
    return FakeHAProxy(tmp_path / "node")


@pytest.fixture
def clock() -> list[float]:
    return [100.0]


@pytest.fixture
def announce(tmp_path, clock) -> Announcer:
    return Announcer(tmp_path, lambda: clock[0])


SERVER = "set server http-recpool/SERVE_REPLICA_recpool-gateway-"


def test_a_role_is_a_weight_and_nobody_stands_by_before_another_serves(announce, haproxy):
    announce({"abc": True, "def": False, "new": True})
    assert haproxy.told == [f"{SERVER}def weight 1; {SERVER}abc weight 0"]


def test_the_next_start_of_haproxy_finds_the_roles_in_a_file(announce, haproxy, tmp_path):
    assert standing_by(tmp_path) == []
    announce({"abc": True, "def": False})
    assert standing_by(tmp_path) == ["abc"]
    (tmp_path / ROLES).write_text("{")
    assert standing_by(tmp_path) == []


def test_what_was_told_is_told_again_after_a_while_and_not_before(announce, haproxy, clock):
    for _ in range(3):
        announce({"abc": True})
    assert len(haproxy.told) == 1
    clock[0] += REPEAT_S
    announce({"abc": True})
    announce({"abc": False})
    assert [said.rpartition(" ")[2] for said in haproxy.told] == ["0", "0", "1"]


def test_one_that_is_gone_gets_no_call_either(announce, haproxy):
    announce({"abc": True, "def": False})
    announce({"abc": False})
    assert haproxy.told[-1] == f"{SERVER}abc weight 1; {SERVER}def weight 0"


def test_the_last_role_that_goes_is_told_and_then_there_is_rest(announce, haproxy, tmp_path, clock):
    announce({})
    assert not (tmp_path / ROLES).exists()
    announce({"abc": True})
    announce({})
    assert json.loads((tmp_path / ROLES).read_text()) == {}
    clock[0] += REPEAT_S
    announce({})
    assert len(haproxy.told) == 1


def test_a_haproxy_that_is_gone_or_was_never_there_is_no_error(tmp_path, announce):
    folder = tmp_path / "node"
    folder.mkdir()
    (folder / "haproxy.cfg").write_text(CONFIG.format(socket=folder / "s"))
    announce({"abc": True})
    assert standing_by(tmp_path) == ["abc"]
    Announcer(tmp_path / "nowhere")({"abc": True})
