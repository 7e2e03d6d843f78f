"""What a cluster is started with."""

from __future__ import annotations

import os
import shlex
import socket
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

from configs.errors import Conflict
from configs.settings import build_settings
from deployments.environment import (
    LONGEST_SOCKET_FOLDER,
    Folders,
    Ports,
    client_environment,
    cluster_environment,
    is_free,
    write_files,
)
from pool.gate import cpu

PORTS = Ports(1, 2, 3, 4, 5001, 6001, 7, 8)

SETTINGS = build_settings({})


def test_chosen_ports_are_free_and_distinct():
    ports = vars(Ports.choose()).values()
    assert len(set(ports)) == len(ports)
    assert all(is_free(port) for port in ports)


def test_a_held_port_is_not_free():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        assert not is_free(holder.getsockname()[1])


def test_sockets_stay_below_the_home_unless_its_path_is_too_long():
    assert Folders(Path("/srv/recpool")).ray == Path("/srv/recpool/run/ray")
    long = Folders(Path("/srv") / ("x" * 60))
    other = Folders(Path("/srv") / ("y" * 60))
    assert len(str(long.sockets)) <= LONGEST_SOCKET_FOLDER
    assert long.ray != other.ray


@pytest.mark.parametrize(("may_rise", "nice"), [(True, "5"), (False, "0")])
def test_processes_start_at_a_lower_rank_only_where_they_can_leave_it_again(monkeypatch, may_rise, nice):
    monkeypatch.setattr(cpu, "may_rise", lambda: may_rise)
    variables = cluster_environment(build_settings({}), Folders(Path("/h")), PORTS)
    assert variables["RAY_worker_niceness"] == nice
    assert variables["RAY_SERVE_HAPROXY_BINARY_PATH"].startswith("/h/run/hap/")


def test_the_token_is_private_and_kept(tmp_path):
    folders = Folders(tmp_path)
    write_files(SETTINGS, folders, PORTS)
    first = folders.token.read_text()
    write_files(SETTINGS, folders, PORTS)
    assert folders.token.read_text() == first
    assert len(first) >= 32
    assert stat.S_IMODE(folders.token.stat().st_mode) == 0o600


@pytest.fixture
def long_home(tmp_path, monkeypatch) -> Folders:
    """A home too long for sockets, and a folder for temporary files that other users write to as well."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return Folders(tmp_path / ("x" * 60))


def test_the_folder_for_a_long_home_is_for_its_owner_alone(long_home):
    write_files(SETTINGS, long_home, PORTS)
    write_files(SETTINGS, long_home, PORTS)
    assert stat.S_IMODE(long_home.sockets.stat().st_mode) == 0o700


def test_a_folder_that_others_may_write_to_is_refused_with_a_remedy(long_home):
    long_home.sockets.mkdir()
    long_home.sockets.chmod(0o770)
    with pytest.raises(Conflict, match="RECPOOL_HOME"):
        write_files(SETTINGS, long_home, PORTS)
    assert list(long_home.sockets.iterdir()) == []


def test_a_folder_of_another_user_is_refused(long_home, monkeypatch):
    long_home.sockets.mkdir(mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: long_home.sockets.stat().st_uid + 1)
    with pytest.raises(Conflict):
        write_files(SETTINGS, long_home, PORTS)


def test_a_link_to_a_folder_of_ours_is_refused_and_nothing_behind_it_is_removed(long_home, tmp_path):
    kept = tmp_path / "ours" / "ray" / "kept"
    kept.mkdir(parents=True)
    long_home.sockets.symlink_to(tmp_path / "ours")
    with pytest.raises(Conflict):
        write_files(SETTINGS, long_home, PORTS)
    assert kept.is_dir()


def test_the_shell_snippet_sets_what_rays_tools_need(tmp_path):
    folders = Folders(tmp_path / "home with space")
    write_files(SETTINGS, folders, PORTS)
    script = f'. {shlex.quote(str(folders.shell))} && printf %s "$RECPOOL_HOME|$RAY_DASHBOARD_ADDRESS"'
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert said == f"{folders.home}|{client_environment(folders, PORTS)['RAY_DASHBOARD_ADDRESS']}"
