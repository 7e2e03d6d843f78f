"""Small ledgers, and what every refusal has to keep, for the tests of the ledger."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from configs.errors import RecpoolError
from pool.device import Device, Topology
from pool.ledger import Ledger

MEMORY = {"a": 100, "b": 60, "c": 0, "d": 100}
GOOD_NAMES, BAD_NAMES = ("ranker", "trainer", "eval-1"), ("", "Ranker", "r" * 64, "ranker\n")


def device(name: str) -> Device:
    return Device(name, "gpu", MEMORY[name], Topology("node"), emulated=name == "b")


def filled() -> Ledger:
    """On a: ranker 400 milli, 30 bytes (1-1) and trainer 500 milli, 20 bytes (1-2); b is free."""
    ledger = Ledger([device("a"), device("b")])
    ledger.grant("ranker", "a", 400, 30, 1)
    ledger.grant("trainer", "a", 500, 20, 1)
    return ledger


def refused(ledger: Ledger, kind: type[RecpoolError], change: Any) -> str:
    """Expect a refusal that changes nothing; returns its message."""
    before = (ledger.to_json(), ledger.leases(), ledger.devices(), ledger.epoch)
    with pytest.raises(kind) as refusal:
        change()
    assert (ledger.to_json(), ledger.leases(), ledger.devices(), ledger.epoch) == before
    ledger.check_integrity()
    assert pickle.loads(pickle.dumps(refusal.value)).args == refusal.value.args
    return refusal.value.message
