"""What counts as a difference between the controller's book and what the actors hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.controller_loss import disagreements
from pool.device import Device, Topology
from pool.gate.readings import SlotView
from pool.ledger import Ledger
from pool.runtime.messages import HostStatus
from pool.views import DeviceReport, PoolReport, SliceReport, WorkloadReport
from pool.workload import WorkloadSpec

SPEC = WorkloadSpec(name="night", kind="finetune", model="release")


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger([Device("gpu-0", "gpu", 100, Topology("n"), (0,), emulated=True)])
    ledger.grant("night", "gpu-0", 300, 10, ledger.epoch)
    ledger.grant("gateway", "gpu-0", 500, 0, ledger.epoch)
    return ledger


@pytest.fixture
def book(ledger):
    """Report, hosts, gates and ledger that agree."""
    slices = tuple(
        SliceReport(each.id, each.workload, "finetune", "best_effort", None, each.milli, 0, 0, each.memory_bytes)
        for each in ledger.leases()
    )
    device = DeviceReport("gpu-0", "gpu", "gpu (emulated)", True, "n", "alive", 100, 200, 90, slices)
    workloads = (
        WorkloadReport("night", "finetune", "best_effort", "running", "", "gpu-0", 0, 0.0, {}),
        WorkloadReport("gateway", "inference", "guaranteed", "running", "", "gpu-0", 0, 0.0, {}),
    )
    [lease] = ledger.leases(workload="night")
    status = HostStatus(lease, SPEC, ledger.epoch, 1, "running")
    slot = SlotView(0, 1, "gateway", 2, 3, "guaranteed", 500, "run", 0, False, False, 0, 0, 0)
    return PoolReport(ledger.epoch, 0.1, (device,), workloads, ()), [status], {"gpu-0": [slot]}, ledger


def test_a_book_that_agrees_has_nothing_wrong(book):
    assert disagreements(*book) == []


def test_a_host_that_holds_something_else_or_obeys_another_epoch_is_told(book):
    report, [status], gates, ledger = book
    for other in (
        replace(status, lease=replace(status.lease, milli=301)),
        replace(status, lease=replace(status.lease, device="gpu-1")),
        replace(status, epoch=status.epoch + 1),
    ):
        [why] = disagreements(report, [other], gates, ledger)
        assert "its host says" in why
    stranger = replace(status, lease=replace(status.lease, id="9-9"))
    assert any("not in the book" in why for why in disagreements(report, [status, stranger], gates, ledger))


def test_a_lease_without_its_host_or_its_replica_is_told(book):
    report, hosts, gates, ledger = book
    assert "has no host" in disagreements(report, [], gates, ledger)[0]
    assert "1 leases of gateway, 0 of it at the gate" in disagreements(report, hosts, {"gpu-0": []}, ledger)[0]
    assert disagreements(report, [replace(hosts[0], phase="ended")], gates, ledger) == []


def test_a_journal_that_says_otherwise_is_told(book):
    report, hosts, gates, ledger = book
    ledger.grant("more", "gpu-0", 1, 0, ledger.epoch)
    assert "the journal has" in disagreements(report, hosts, gates, ledger)[0]
