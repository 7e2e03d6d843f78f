"""What the ledger grants, what it refuses and how it says so; a refusal changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from configs.errors import Conflict, InvalidRequest, NotFound
from pool.lease import LAST_EPOCH, Lease
from pool.ledger import Ledger
from tests.unit.pool.ledgers import BAD_NAMES, device, filled, refused

# Grants and changes


def test_a_device_is_leased_to_the_last_milli_and_byte_and_no_further():
    ledger = filled()
    assert ledger.free("a") == (100, 50)
    message = refused(ledger, Conflict, lambda: ledger.grant("eval", "a", 101, 0, 1))
    assert "ranker 400 milli 30 bytes (1-1)" in message and "trainer 500 milli 20 bytes (1-2)" in message
    refused(ledger, Conflict, lambda: ledger.grant("eval", "a", 0, 51, 1))
    ledger.grant("eval", "a", 100, 50, 1)
    assert ledger.free("a") == (0, 0)
    ledger.grant("warm", "a", 0, 0, 1)  # a copy that holds nothing yet is no over-commitment


def test_replicas_of_one_workload_hold_leases_of_their_own():
    ledger = Ledger([device("a"), device("b")])
    leases = [ledger.grant("ranker", place, 300, 10, 1) for place in "aab"]
    assert len({lease.id for lease in leases}) == 3
    assert ledger.leases(workload="ranker") == tuple(leases)
    assert ledger.leases("a", "ranker") == tuple(leases[:2])
    assert ledger.release_all("ranker", 1) == tuple(leases)
    assert ledger.free("a") == (1_000, 100) and ledger.release_all("ranker", 1) == ()


def test_a_lease_may_grow_into_what_it_holds_itself():
    ledger = filled()
    assert ledger.resize("1-1", 500, 80, 1).milli == 500
    refused(ledger, Conflict, lambda: ledger.resize("1-1", 501, 80, 1))
    assert ledger.resize("1-1", 1, 0, 1) == Lease("1-1", "ranker", "a", 1, 0, 1)


def test_a_move_keeps_the_lease_and_frees_the_old_place():
    ledger = filled()
    assert ledger.move("1-1", "b", 1) == Lease("1-1", "ranker", "b", 400, 30, 1)
    assert ledger.free("a") == (500, 80) and ledger.free("b") == (600, 30)
    refused(ledger, NotFound, lambda: ledger.move("1-1", "nowhere", 1))
    ledger.grant("eval", "a", 500, 0, 1)
    assert "1-3" in refused(ledger, Conflict, lambda: ledger.move("1-1", "a", 1))
    assert ledger.move("1-1", "b", 1).device == "b"  # where it is already


@pytest.mark.parametrize("milli", [-1, 1_001, 0.5, True, None, "100"])
def test_a_share_out_of_0_to_1000_is_refused(milli):
    ledger = filled()
    for change in (lambda: ledger.grant("eval", "b", milli, 0, 1), lambda: ledger.resize("1-1", milli, 0, 1)):
        message = refused(ledger, InvalidRequest, change)
        assert "from 0 to 1000" in message and "book of epoch 1" in message


@pytest.mark.parametrize("memory_bytes", [-1, 61, 1.0, False, 1 << 46])
def test_memory_above_the_device_is_refused(memory_bytes):
    ledger = filled()
    message = refused(ledger, InvalidRequest, lambda: ledger.grant("eval", "b", 10, memory_bytes, 1))
    assert "memory_bytes" in message and "b [gpu (emulated)] 0/1000 milli, 0/60 bytes leased to nobody" in message


@pytest.mark.parametrize("name", [*BAD_NAMES, None, 7])
def test_a_malformed_workload_name_is_refused(name):
    ledger = filled()
    with pytest.raises(InvalidRequest) as refusal:
        ledger.grant(name, "a", 10, 0, 1)
    assert refusal.value.field == "workload"


def test_what_is_not_there_is_not_found_and_the_book_is_shown():
    ledger = filled()
    for change in (
        lambda: ledger.grant("eval", "nowhere", 10, 0, 1),
        lambda: ledger.withdraw_device("nowhere", 1),
        lambda: ledger.resize("7-7", 10, 0, 1),
        lambda: ledger.move("7-7", "b", 1),
        lambda: ledger.release("7-7", 1),
        lambda: ledger.lease("7-7"),
        lambda: ledger.device("nowhere"),
        lambda: ledger.free("nowhere"),
        lambda: ledger.fits("nowhere", 1, 1),
        lambda: ledger.leases(device="nowhere"),
        lambda: ledger.book("nowhere"),
    ):
        message = refused(ledger, NotFound, change)
        assert ("nowhere" in message or "7-7" in message) and "ranker 400 milli" in message


def test_a_released_lease_is_gone_for_good_and_its_id_is_not_given_again():
    ledger = filled()
    assert ledger.release("1-2", 1).workload == "trainer"
    refused(ledger, NotFound, lambda: ledger.release("1-2", 1))
    assert ledger.grant("eval", "a", 500, 20, 1).id == "1-3"


def test_fits_tells_what_grant_would_do():
    ledger = filled()
    assert ledger.fits("a", 100, 50) and ledger.fits("a", 0, 0)
    assert not any(ledger.fits("a", *amount) for amount in [(101, 0), (0, 51), (-1, 0), (0, -1), (True, 0)])


# Devices


def test_a_withdrawn_device_takes_its_leases_with_it():
    ledger = filled()
    kept = ledger.grant("eval", "b", 10, 10, 1)
    lost = ledger.withdraw_device("a", 1)
    assert [lease.workload for lease in lost] == ["ranker", "trainer"]
    assert ledger.leases() == (kept,) and [each.id for each in ledger.devices()] == ["b"]
    refused(ledger, NotFound, lambda: ledger.grant("eval", "a", 10, 0, 1))
    ledger.add_device(device("a"), 1)
    assert ledger.free("a") == (1_000, 100)  # back, and free


def test_two_devices_of_one_id_are_refused():
    ledger = filled()
    assert "ranker" in refused(ledger, Conflict, lambda: ledger.add_device(device("a"), 1))
    with pytest.raises(Conflict, match="'a' is in the pool already"):
        Ledger([device("a"), device("a")])


# Epochs


def test_a_fenced_controller_changes_nothing_and_its_leases_go_on():
    ledger = filled()
    before = ledger.leases()
    assert ledger.fence() == 2 and ledger.leases() == before
    for change in (
        lambda: ledger.grant("eval", "b", 10, 0, 1),
        lambda: ledger.resize("1-1", 10, 0, 1),
        lambda: ledger.move("1-1", "b", 1),
        lambda: ledger.release("1-1", 1),
        lambda: ledger.release_all("ranker", 1),
        lambda: ledger.add_device(device("c"), 1),
        lambda: ledger.withdraw_device("a", 1),
        lambda: ledger.adopt(before, 1),
    ):
        message = refused(ledger, Conflict, change)
        assert "epoch 1 is fenced off, the newest is 2" in message and "book of epoch 2" in message
    assert ledger.grant("eval", "b", 10, 0, 2) == Lease("2-1", "eval", "b", 10, 0, 2)
    assert ledger.resize("1-1", 10, 0, 2) == Lease("1-1", "ranker", "a", 10, 0, 2)
    assert ledger.lease("1-2").epoch == 1


@pytest.mark.parametrize("epoch", [0, 2, -1, True, 1.0, None, "1"])
def test_an_epoch_that_nobody_started_is_refused(epoch):
    ledger = filled()
    refused(ledger, Conflict, lambda: ledger.grant("eval", "b", 10, 0, epoch))


def test_a_new_epoch_is_above_any_that_the_actors_have_seen():
    ledger = filled()
    assert [ledger.fence(after=7), ledger.fence(after=3), ledger.fence()] == [8, 9, 10]
    for after in (-1, True, 1.5, LAST_EPOCH):
        refused(ledger, InvalidRequest, lambda after=after: ledger.fence(after))
    assert ledger.fence(after=LAST_EPOCH - 1) == LAST_EPOCH
    refused(ledger, Conflict, ledger.fence)
    assert ledger.grant("eval", "b", 10, 0, LAST_EPOCH).epoch == LAST_EPOCH
    assert Ledger.from_json(ledger.to_json()).leases() == ledger.leases()


# Adoption


def test_adoption_makes_the_book_what_the_actors_hold():
    ledger = filled()
    epoch = ledger.fence()
    shrunk, elsewhere = Lease("1-1", "ranker", "a", 100, 30, 1), Lease("1-9", "eval", "b", 50, 5, 1)
    adopted = ledger.adopt([elsewhere, shrunk], epoch)
    assert adopted == ledger.leases() == (replace(shrunk, epoch=2), replace(elsewhere, epoch=2))
    assert ledger.free("a") == (900, 70)  # nobody claimed the trainer's lease
    assert ledger.adopt(adopted, epoch) == adopted
    assert ledger.adopt([], epoch) == () and ledger.free("a") == (1_000, 100)


def test_an_adopted_grant_that_the_journal_missed_keeps_its_id():
    written = filled()
    late = Ledger.from_json(written.to_json()).grant("eval", "b", 10, 0, 1)
    assert late.id == "1-3"
    written.adopt([*written.leases(), late], 1)
    assert written.grant("other", "b", 10, 0, 1).id == "1-4"


@pytest.mark.parametrize(
    ("claims", "kind", "named"),
    [
        ([("1-1", "ranker", "a", 600, 0, 1), ("1-2", "trainer", "a", 401, 0, 1)], Conflict, ["1-1", "1-2", "trainer"]),
        ([("1-1", "ranker", "a", 1, 60, 1), ("1-2", "trainer", "a", 1, 41, 1)], Conflict, ["1-1", "1-2", "trainer"]),
        ([("1-1", "ranker", "a", 1, 0, 1), ("1-1", "trainer", "b", 1, 0, 1)], Conflict, ["1-1", "ranker", "trainer"]),
        ([("1-1", "ranker", "a", 1, 0, 1), ("1-1", "ranker", "a", 1, 0, 1)], Conflict, ["claimed twice"]),
        ([("1-1", "ranker", "a", 1, 0, 3)], Conflict, ["epoch 3", "ranker"]),
        ([("3-1", "ranker", "a", 1, 0, 2)], InvalidRequest, ["3-1"]),
        ([("1-1", "ranker", "nowhere", 1, 0, 1)], NotFound, ["nowhere"]),
        ([("1-1", "ranker", "a", 1_001, 0, 1)], InvalidRequest, ["1-1", "1001"]),
        ([("1-1", "ranker", "a", 1, 101, 1)], InvalidRequest, ["101"]),
        ([("1-1", "Ranker", "a", 1, 0, 1)], InvalidRequest, ["1-1", "Ranker"]),
        ([("01-1", "ranker", "a", 1, 0, 1)], InvalidRequest, ["01-1"]),
        ([(7, "ranker", "a", 1, 0, 1)], InvalidRequest, ["7"]),
        ([("1-1", "ranker", ["a"], 1, 0, 1)], InvalidRequest, ["1-1"]),
        ([("1-1", "ranker", "a", 1, 0, True)], InvalidRequest, ["1-1", "True"]),
    ],
)
def test_claims_that_contradict_adopt_nothing_and_are_named(claims, kind, named):
    ledger = filled()
    ledger.fence()
    message = refused(ledger, kind, lambda: ledger.adopt([Lease(*claim) for claim in claims], 2))
    assert message.startswith("nothing is adopted") and all(each in message for each in named)
    assert "the book stays" in message and "trainer 500 milli 20 bytes (1-2)" in message


# The book in words


def test_the_book_says_who_holds_what_and_which_device_is_emulated():
    ledger = filled()
    assert ledger.book("b") == "book of epoch 1: b [gpu (emulated)] 0/1000 milli, 0/60 bytes leased to nobody"
    assert ledger.book() == (
        "book of epoch 1: a [gpu] 900/1000 milli, 50/100 bytes leased to ranker 400 milli 30 bytes (1-1), "
        "trainer 500 milli 20 bytes (1-2); b [gpu (emulated)] 0/1000 milli, 0/60 bytes leased to nobody"
    )
    assert Ledger().book() == "book of epoch 1: no devices"


def test_the_book_of_a_large_pool_stays_short():
    ledger = Ledger([replace(device("a"), id=f"gpu-{i}") for i in range(50)])
    for _ in range(50):
        ledger.grant("ranker", "gpu-0", 20, 1, 1)
    assert "and 34 more" in ledger.book("gpu-0") and "1000/1000 milli" in ledger.book("gpu-0")
    assert ledger.book().endswith("; and 34 more") and len(ledger.book()) < 2_500


# Integrity


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda book: book._leases.update({"1-1": replace(book.lease("1-1"), milli=501)}), "a is over-committed"),
        (lambda book: book._leases.update({"1-1": replace(book.lease("1-1"), memory_bytes=81)}), "a: 101 bytes"),
        (lambda book: book._leases.update({"1-1": replace(book.lease("1-1"), device="x")}), "unknown device 'x'"),
        (lambda book: book._leases.update({"1-1": replace(book.lease("1-1"), device="b")}), "leaked"),
        (lambda book: book._leases.update({"1-1": replace(book.lease("1-1"), milli=-1)}), "malformed"),
        (lambda book: book._leases.update({"1-1": replace(book.lease("1-1"), epoch=2)}), "to come"),
        (lambda book: book._leases.update({"1-3": book.lease("1-1")}), "under id 1-3"),
        (lambda book: book._leases.update({"1-3": replace(book.lease("1-1"), id="1-3", milli=0)}), "never granted"),
        (lambda book: book._leases.pop("1-1"), "leaked"),
        (lambda book: book._tenants["a"].pop("1-1"), "leaked"),
        (lambda book: book._tenants["b"].update({"1-1": None}), "listed twice"),
        (lambda book: book._devices.pop("b"), "leaked"),
    ],
)
def test_a_book_that_contradicts_itself_is_found(damage, named):
    ledger = filled()
    ledger.check_integrity()
    damage(ledger)
    with pytest.raises(AssertionError, match=named) as found:
        ledger.check_integrity()
    assert "trainer 500 milli 20 bytes (1-2) on a" in str(found.value)
