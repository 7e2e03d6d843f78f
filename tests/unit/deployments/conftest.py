"""The command line, run in this process."""

from __future__ import annotations

import sys

import pytest

from deployments import cli


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run the command in a fresh home; returns exit code, standard output and standard error."""
    monkeypatch.setenv("RECPOOL_HOME", str(tmp_path))

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["recpool", *words])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        said = capsys.readouterr()
        return int(exit_.value.code or 0), said.out, said.err

    return call
