"""What the planner decides. Decisions are applied in their order, each with the reason it was made for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Grant:
    """A new lease; the workload starts there."""

    workload: str
    device: str
    milli: int
    memory_bytes: int
    reason: str


@dataclass(frozen=True)
class Resume:
    """A new lease for work that was preempted; it goes on from its checkpoint."""

    workload: str
    device: str
    milli: int
    memory_bytes: int
    reason: str


@dataclass(frozen=True)
class Release:
    """A lease ends: its device is gone, or nothing needs it any more."""

    lease: str
    workload: str
    device: str
    reason: str


@dataclass(frozen=True)
class Requeue:
    """A lease of interruptible work is lost with its device; the work goes back to its place in the queue."""

    lease: str
    workload: str
    device: str
    reason: str


@dataclass(frozen=True)
class Preempt:
    """A lease ends so that more important work gets its place; checkpoint first."""

    lease: str
    workload: str
    device: str
    reason: str


@dataclass(frozen=True)
class Migrate:
    """A lease goes from one live device to another."""

    lease: str
    workload: str
    source: str
    device: str
    milli: int
    memory_bytes: int
    reason: str


@dataclass(frozen=True)
class PromoteShadow:
    """A warm copy takes over; its lease grows to the size stated.

    Attributes:
        lost: the lease it takes over for; empty when that is gone already.
    """

    lease: str
    workload: str
    device: str
    milli: int
    memory_bytes: int
    lost: str
    reason: str


@dataclass(frozen=True)
class StandBy:
    """A serving copy becomes a warm one, since another serves in its place; of its lease it keeps the memory."""

    lease: str
    workload: str
    device: str
    reason: str


@dataclass(frozen=True)
class SetShares:
    """New weights of a device's gate, by lease."""

    device: str
    weights: tuple[tuple[str, int], ...]
    reason: str


@dataclass(frozen=True)
class Park:
    """A workload that crashes again and again is left alone until a person looks."""

    workload: str
    reason: str


Decision = Grant | Resume | Release | Requeue | Preempt | Migrate | PromoteShadow | StandBy | SetShares | Park
