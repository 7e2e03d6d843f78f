"""The ledger never over-commits, never leaks, refuses a fenced controller, and a refusal changes nothing.

A state machine drives it beside a naive book (a list of entries per device, summed afresh each time).
"""

from __future__ import annotations

from dataclasses import asdict, astuple, replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from configs.errors import Conflict, InvalidRequest, NotFound, RecpoolError
from pool.lease import Lease
from pool.ledger import Ledger
from tests.unit.pool.ledgers import BAD_NAMES, GOOD_NAMES, MEMORY, device, refused

amounts = st.one_of(st.integers(0, 400), st.integers(-2, 1_003), st.sampled_from([True, 0.5, None, "1", 10**30]))
small = st.one_of(st.integers(0, 30), st.integers(-1, 102), st.sampled_from([False, 1.0, 10**30]))
names = st.sampled_from(GOOD_NAMES * 3 + BAD_NAMES)
places = st.sampled_from(("a", "b", "c", "d") * 3 + ("nowhere", ""))
off_by = st.sampled_from([0] * 8 + [-1, 1])
picks = st.integers(0, 30)


def whole(value: Any, most: int) -> bool:
    return type(value) is int and 0 <= value <= most


class AgainstANaiveBook(RuleBasedStateMachine):
    """Each rule first asks the naive book which refusals are due: with none, the change must go through."""

    @initialize()
    def start(self):
        self.entries: dict[str, list[dict[str, Any]]] = {"a": [], "b": []}
        self.ledger = Ledger([device("a"), device("b")])
        self.epoch = self.ledger.epoch
        self.ever: set[str] = set()

    def due(self, epoch: int, place: str, milli: Any, memory: Any, without: str | None = None) -> set[type]:
        due = set() if epoch == self.epoch else {Conflict}
        if not whole(milli, 1_000) or not whole(memory, 10**12):
            return due | {InvalidRequest} | ({NotFound} if place not in self.entries else set())
        if place not in self.entries:
            return due | {NotFound}
        others = [entry for entry in self.entries[place] if entry["id"] != without]
        if memory > MEMORY[place]:
            due.add(InvalidRequest)
        if milli + sum(e["milli"] for e in others) > 1_000:
            due.add(Conflict)
        if memory + sum(e["memory_bytes"] for e in others) > MEMORY[place]:
            due.add(Conflict)
        return due

    def attempt(self, due: set[type], change: Any, place: str | None) -> Any:
        """The result of a change that may go through; None when it was refused, as it had to be."""
        if not due:
            return change()
        message = refused(self.ledger, RecpoolError, lambda: self.kind_checked(due, change))
        for entry in self.entries.get(place or "", [])[:16]:
            assert entry["id"] in message
        if place in self.entries:
            assert f"{sum(e['milli'] for e in self.entries[place])}/1000 milli" in message
        return None

    @staticmethod
    def kind_checked(due: set[type], change: Any) -> None:
        try:
            change()
        except RecpoolError as refusal:
            assert type(refusal) in due, f"{refusal!r} instead of one of {due}"
            raise

    def pick(self, index: int) -> tuple[str, dict[str, Any] | None]:
        """A lease of the book, or an id that is in no book."""
        held = [entry for entries in self.entries.values() for entry in entries]
        gone = sorted(self.ever - {entry["id"] for entry in held})
        choices = [*held, *[None] * (1 + bool(gone))]
        entry = choices[index % len(choices)]
        return (entry["id"], entry) if entry else (gone[0] if gone else "9-9", None)

    @rule(name=names, place=places, milli=amounts, memory=small, off=off_by)
    def grant(self, name, place, milli, memory, off):
        if place in self.entries:
            room = self.due(self.epoch, place, milli, memory)
            assert self.ledger.fits(place, milli, memory) == (not room)
        due = self.due(self.epoch + off, place, milli, memory) | ({InvalidRequest} if name in BAD_NAMES else set())
        change = lambda: self.ledger.grant(name, place, milli, memory, self.epoch + off)  # noqa: E731
        lease = self.attempt(due, change, place)
        if lease is not None:
            assert lease.id not in self.ever
            self.ever.add(lease.id)
            entry = {"id": lease.id, "workload": name, "device": place, "milli": milli, "memory_bytes": memory}
            self.entries[place].append({**entry, "epoch": self.epoch})
            assert asdict(lease) == self.entries[place][-1]

    @rule(index=picks, milli=amounts, memory=small, off=off_by)
    def resize(self, index, milli, memory, off):
        lease_id, entry = self.pick(index)
        place = entry["device"] if entry else None
        wrong_epoch = {Conflict} if off else set()
        due = self.due(self.epoch + off, place, milli, memory, lease_id) if place else {NotFound} | wrong_epoch
        change = lambda: self.ledger.resize(lease_id, milli, memory, self.epoch + off)  # noqa: E731
        lease = self.attempt(due, change, place)
        if lease is not None:
            assert entry is not None
            entry.update(milli=milli, memory_bytes=memory, epoch=self.epoch)
            assert asdict(lease) == entry

    @rule(index=picks, place=places, off=off_by)
    def move(self, index, place, off):
        lease_id, entry = self.pick(index)
        due = {NotFound} | ({Conflict} if off else set())
        if entry:
            due = self.due(self.epoch + off, place, entry["milli"], entry["memory_bytes"], lease_id)
        change = lambda: self.ledger.move(lease_id, place, self.epoch + off)  # noqa: E731
        lease = self.attempt(due, change, None)
        if lease is not None:
            assert entry is not None
            self.entries[entry["device"]].remove(entry)
            entry.update(device=place, epoch=self.epoch)
            self.entries[place].append(entry)
            assert asdict(lease) == entry

    @rule(index=picks, off=off_by)
    def release(self, index, off):
        lease_id, entry = self.pick(index)
        due = ({Conflict} if off else set()) | (set() if entry else {NotFound})
        change = lambda: self.ledger.release(lease_id, self.epoch + off)  # noqa: E731
        lease = self.attempt(due, change, entry["device"] if entry else None)
        if lease is not None:
            assert entry is not None and asdict(lease) == entry
            self.entries[entry["device"]].remove(entry)

    @rule(name=names, off=off_by)
    def release_all(self, name, off):
        change = lambda: self.ledger.release_all(name, self.epoch + off)  # noqa: E731
        leases = self.attempt({Conflict} if off else set(), change, None)
        if leases is not None:
            given_back = [e for entries in self.entries.values() for e in entries if e["workload"] == name]
            assert as_set(leases) == {tuple(entry.values()) for entry in given_back}
            self.entries = {p: [e for e in es if e["workload"] != name] for p, es in self.entries.items()}

    @rule(place=st.sampled_from(["c", "d", "a"]), off=off_by)
    def add_device(self, place, off):
        due = {Conflict} if off or place in self.entries else set()
        self.attempt(due, lambda: self.ledger.add_device(device(place), self.epoch + off), place)
        if not due:
            self.entries[place] = []

    @rule(place=places, off=off_by)
    def withdraw_device(self, place, off):
        due = ({Conflict} if off else set()) | (set() if place in self.entries else {NotFound})
        lost = self.attempt(due, lambda: self.ledger.withdraw_device(place, self.epoch + off), place)
        if lost is not None:
            assert as_set(lost) == {tuple(entry.values()) for entry in self.entries.pop(place)}

    @rule(after=st.integers(0, 12))
    def fence(self, after):
        epoch = self.ledger.fence(after)
        assert epoch == self.ledger.epoch > max(self.epoch, after)
        self.epoch = epoch

    @rule()
    def reload(self):
        """A controller killed right after a journal write."""
        self.ledger = Ledger.from_json(self.ledger.to_json())

    @rule(kept=st.lists(st.booleans(), max_size=6), off=off_by, data=st.data())
    def adopt(self, kept, off, data):
        held = [Lease(**entry) for entries in self.entries.values() for entry in entries]
        claims = [lease for i, lease in enumerate(held) if i >= len(kept) or kept[i]]
        for i in data.draw(st.lists(st.integers(0, 6), max_size=2)):
            if i < len(claims):
                changes = {"milli": amounts, "memory_bytes": small, "device": places, "workload": names}
                field = data.draw(st.sampled_from(sorted(changes)))
                claims[i] = replace(claims[i], **{field: data.draw(changes[field])})
        claims += claims[: data.draw(st.sampled_from([0, 0, 0, 1]))]
        claims = data.draw(st.permutations(claims))
        due = self.due_for_claims(claims) | ({Conflict} if off else set())
        adopted = self.attempt(due, lambda: self.ledger.adopt(iter(claims), self.epoch + off), None)
        if adopted is not None:
            expected = [{**asdict(claim), "epoch": self.epoch} for claim in claims]
            assert as_set(adopted) == {tuple(entry.values()) for entry in expected}
            self.entries = {place: [e for e in expected if e["device"] == place] for place in self.entries}

    def due_for_claims(self, claims: list[Lease]) -> set[type]:
        due: set[type] = set()
        if len({claim.id for claim in claims}) < len(claims):
            due.add(Conflict)
        for claim in claims:
            well_formed = whole(claim.milli, 1_000) and whole(claim.memory_bytes, MEMORY.get(claim.device, 10**12))
            if claim.workload in BAD_NAMES or not well_formed:
                due |= {InvalidRequest, Conflict}  # sums with malformed claims mean nothing: either refusal is right
            if claim.device not in self.entries:
                due.add(NotFound)
        for place in self.entries if InvalidRequest not in due else ():
            on_it = [claim for claim in claims if claim.device == place]
            if sum(c.milli for c in on_it) > 1_000 or sum(c.memory_bytes for c in on_it) > MEMORY[place]:
                due.add(Conflict)
        return due

    @invariant()
    def the_books_agree(self):
        self.ledger.check_integrity()
        assert {each.id for each in self.ledger.devices()} == set(self.entries)
        for place, entries in self.entries.items():
            assert as_set(self.ledger.leases(device=place)) == {tuple(entry.values()) for entry in entries}
            used = (sum(e["milli"] for e in entries), sum(e["memory_bytes"] for e in entries))
            assert self.ledger.free(place) == (1_000 - used[0], MEMORY[place] - used[1])
            assert used[0] <= 1_000 and used[1] <= MEMORY[place]
        everything = [tuple(entry.values()) for entries in self.entries.values() for entry in entries]
        assert len(self.ledger.leases()) == len(everything) and as_set(self.ledger.leases()) == set(everything)
        for name in GOOD_NAMES:
            assert as_set(self.ledger.leases(workload=name)) == {row for row in everything if row[1] == name}

    @invariant()
    def the_journal_gives_the_same_book(self):
        again = Ledger.from_json(self.ledger.to_json())
        assert again.to_json() == self.ledger.to_json()
        assert (again.leases(), again.devices(), again.epoch) == (
            self.ledger.leases(),
            self.ledger.devices(),
            self.ledger.epoch,
        )


def as_set(leases) -> set[tuple]:
    rows = [astuple(lease) for lease in leases]
    assert len(rows) == len(set(rows))
    return set(rows)


TestAgainstANaiveBook = AgainstANaiveBook.TestCase
TestAgainstANaiveBook.settings = settings(stateful_step_count=30, deadline=None)
