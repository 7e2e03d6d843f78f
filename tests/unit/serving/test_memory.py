"""A second release is refused when there is no memory for it, with the figures."""

from __future__ import annotations

import pytest

from configs.errors import Unavailable
from pool.manifest import FileEntry, Manifest
from serving.memory import FACTOR, MIB, require_room


def manifest(mib: float) -> Manifest:
    files = {"a": FileEntry(sha256="", bytes=int(mib * MIB))}
    return Manifest(
        version="4", created_at_s=0, dataset="d", recipe="r", items=1, users=1, objectives=("like",), files=files
    )


@pytest.fixture
def machine(monkeypatch):
    """1,000 MiB are free, and this process holds 300."""
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 1_000 * MIB}))
    held = type("Held", (), {"uss": 300 * MIB})
    monkeypatch.setattr("psutil.Process", lambda: type("Process", (), {"memory_full_info": lambda self: held})())


def test_what_fits_is_let_in(machine):
    require_room(manifest(999 / FACTOR), None)
    require_room(manifest(99 / FACTOR), 400)


def test_what_the_machine_has_no_room_for_is_refused(machine):
    with pytest.raises(Unavailable, match=r"release 4 needs about 1,002 MiB .* 1,000 MiB are free"):
        require_room(manifest(1_002 / FACTOR), None)


def test_what_the_replica_may_not_hold_is_refused(machine):
    with pytest.raises(Unavailable, match=r"100 MiB are left of plan\.gateway\.memory_mib = 400; raise it"):
        require_room(manifest(102 / FACTOR), 400)
