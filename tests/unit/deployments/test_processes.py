"""Ending a session's processes: all of them, and nobody else's."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest

from deployments import processes

# A leader that leaves two children behind, one of which ignores SIGTERM.
LEADER = """
import subprocess, sys
wait = "import time; print('ready', flush=True); time.sleep(60)"
ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + wait
for code in (wait, ignore):
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    child.stdout.readline()
"""


@pytest.fixture
def orphans(monkeypatch):
    monkeypatch.setattr(processes, "TERM_GRACE_S", 0.3)  # one of them will not be asked nicely
    since_s = time.time()
    leader = subprocess.Popen([sys.executable, "-c", LEADER], start_new_session=True)
    leader.wait(30)
    yield leader.pid, since_s
    processes.end(processes.session_members(leader.pid, since_s))


def test_orphans_of_a_session_are_found_and_ended_even_when_they_ignore_sigterm(orphans):
    session, since_s = orphans
    members = processes.session_members(session, since_s)
    assert len(members) == 2
    assert processes.end(members) == []
    assert processes.session_members(session, since_s) == []
    assert not any(psutil.pid_exists(p.pid) and p.status() != psutil.STATUS_ZOMBIE for p in members)


def test_a_session_that_began_before_the_record_is_not_ours(orphans):
    session, since_s = orphans
    assert processes.session_members(session, since_s + 3600) == []


def test_ending_what_is_gone_already_is_no_error():
    child = subprocess.Popen([sys.executable, "-c", ""])
    process = psutil.Process(child.pid)
    child.wait(30)
    assert processes.end([process]) == []


def test_only_daemons_below_the_folder_count_as_left_over(tmp_path):
    # The path stands in this process's command line just as in a raylet's, but this is no daemon.
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", f"{tmp_path}/ray"])
    try:
        assert processes.daemons_using(tmp_path) == []
    finally:
        child.kill()
        child.wait(30)
