"""Controllers that are killed at any step: the next one's book is what the actors hold."""

from __future__ import annotations

import random
from dataclasses import astuple
from typing import Any

import pytest

from configs.errors import Conflict
from pool.lease import Lease
from pool.ledger import Ledger
from tests.unit.pool.ledgers import GOOD_NAMES, device, refused


class Actors:
    """What really runs. Each change states its controller's epoch; one older than any seen is not obeyed."""

    def __init__(self):
        self.held: dict[str, Lease] = {}
        self.ever: set[str] = set()
        self.seen = 0

    def told(self, epoch: int, lease: Lease | None = None, drop: str | None = None) -> bool:
        if epoch < self.seen:
            return False
        self.seen = epoch
        if lease:
            assert lease.id in self.held or lease.id not in self.ever, f"{lease} has an id that was given before"
            self.held[lease.id] = lease
            self.ever.add(lease.id)
        self.held.pop(drop or "", None)
        return True


def taken_over(journal: bytes, actors: Actors) -> Ledger:
    """How the module says a restarted controller takes over."""
    ledger = Ledger.from_json(journal)
    epoch = ledger.fence(after=actors.seen)
    actors.told(epoch)
    for lease in ledger.adopt(actors.held.values(), epoch):
        actors.told(epoch, lease)
    return ledger


def change_something(ledger: Ledger, actors: Actors, rng: random.Random, killed_after: int) -> None:
    """One change, cut short after some of its steps: the slice is booked before it is used, freed after."""
    held = ledger.leases()
    steps: list[Any] = []
    if not held or rng.random() < 0.6:
        place, milli, memory = rng.choice("ab"), rng.randrange(300), rng.randrange(20)
        if not ledger.fits(place, milli, memory):
            return
        steps = [
            lambda: steps.append(ledger.grant(rng.choice(GOOD_NAMES), place, milli, memory, ledger.epoch)),
            lambda: actors.told(ledger.epoch, steps[-1]),
        ]
    else:
        lease = rng.choice(held)
        steps = [
            lambda: actors.told(ledger.epoch, drop=lease.id),
            lambda: ledger.release(lease.id, ledger.epoch),
        ]
    for step in steps[:killed_after]:
        step()


@pytest.mark.parametrize("seed", range(5))
def test_after_20_kills_the_book_is_what_the_actors_hold(seed):
    rng, actors = random.Random(seed), Actors()
    ledger = Ledger([device("a"), device("b")])
    journal = ledger.to_json()
    for _ in range(20):
        for _ in range(rng.randrange(6)):
            change_something(ledger, actors, rng, killed_after=2)
            if rng.random() < 0.5:  # writes of the others are lost with the controller
                journal = ledger.to_json()
        change_something(ledger, actors, rng, killed_after=rng.randrange(2))
        zombie, ledger = ledger, taken_over(journal, actors)
        ledger.check_integrity()
        assert {astuple(lease) for lease in ledger.leases()} == {astuple(lease) for lease in actors.held.values()}
        assert ledger.epoch > zombie.epoch and not actors.told(zombie.epoch, drop=next(iter(actors.held), None))
        if actors.held:  # the earlier controller still lives, and asks the actors
            refused(zombie, Conflict, lambda zombie=zombie: zombie.adopt(actors.held.values(), zombie.epoch))
