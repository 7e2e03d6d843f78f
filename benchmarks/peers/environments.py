"""A virtual environment for each peer, made once with pinned versions and used again."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.peers.arms import Arm, NotMeasured

REQUIREMENTS = Path(__file__).parent / "requirements"
COMMON = "funnel.txt"
STAMP = ".installed"


def ensure(arm: Arm, folder: Path, report: Callable[[str], None]) -> Path:
    """The interpreter of the arm's environment below ``folder``; built when it is missing or its pins changed.

    Raises:
        NotMeasured: it cannot be built here; says what is missing.
    """
    if arm.command is None:
        return Path(sys.executable)
    place = folder / arm.name
    python, stamp, wanted = place / "bin" / "python", place / STAMP, _digest(arm)
    if stamp.is_file() and stamp.read_text() == wanted and python.exists():
        return python
    report(f"{arm.name}: building its environment")
    shutil.rmtree(place, ignore_errors=True)
    remedy = f"needs {arm.python} with venv and its shared library (Debian: apt-get install python3-venv libpython3.11)"
    _run([arm.python, "-m", "venv", str(place)], remedy)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "-r", str(REQUIREMENTS / f"{arm.name}.txt")], "its requirements could not be installed")
    stamp.write_text(wanted)
    return python


def _digest(arm: Arm) -> str:
    files = (REQUIREMENTS / name for name in (COMMON, f"{arm.name}.txt"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files) + arm.python.encode()).hexdigest()


def _run(command: list[str], remedy: str) -> None:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError as error:
        raise NotMeasured(f"{remedy}: {error}") from error
    if done.returncode:
        raise NotMeasured(f"{remedy}: {(done.stdout + done.stderr)[-800:]}")
