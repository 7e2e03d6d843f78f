"""Of two controllers of one folder the second waits, and a dead one keeps nobody out (case 24)."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pool.runtime.controller_lock import FILE, ControllerLock

HOLD = """
import sys, time
from pathlib import Path
from pool.runtime.controller_lock import ControllerLock
lock = ControllerLock(Path(sys.argv[1]))
print(lock.take(), flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "None\n"
        yield process
        process.kill()


def test_who_comes_second_is_told_who_is_first_until_that_process_ends(holder, tmp_path):
    lock = ControllerLock(tmp_path)
    assert lock.take() == lock.take() == f"process {holder.pid}"
    holder.send_signal(signal.SIGKILL)
    holder.wait(10)
    assert lock.take() is None
    lock.release()


def test_what_is_released_is_free_for_the_next(tmp_path):
    first = ControllerLock(tmp_path)
    assert first.take() is None
    first.release()
    again = ControllerLock(tmp_path / ".")
    assert again.take() is None
    again.release()
    assert Path(tmp_path / FILE).exists()
