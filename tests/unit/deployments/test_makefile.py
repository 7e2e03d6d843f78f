"""The Makefile of a bare clone."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[3] / "Makefile"


@pytest.mark.parametrize("target", ["down", "clean"])
def test_ending_what_was_never_installed_installs_nothing(tmp_path, target):
    shutil.copy(MAKEFILE, tmp_path)
    done = subprocess.run(["make", target], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["Makefile"]
