"""What people tell the controller, as changes of its state; each either happens whole or raises."""

from __future__ import annotations

from pydantic import ValidationError

from configs.errors import Conflict, InvalidRequest, NotFound
from pool.policy.observation import DeviceHealth
from pool.runtime.applying import Applier
from pool.runtime.records import OVER, Record
from pool.runtime.state import PoolState
from pool.workload import RANK, WorkloadPhase, WorkloadSpec, WorkloadState

ONE_COPY = ("finetune", "evaluate")
"""Kinds whose work has one state and one checkpoint."""
FRESH_S = 5.0
"""A checkpoint of the last seconds is as good as a new one."""
RESUMABLE: tuple[WorkloadPhase, ...] = ("preempted", "failed", "parked")


def submit(state: PoolState, spec: WorkloadSpec, now_s: float) -> Record:
    """Declare a workload.

    Raises:
        Conflict: the name is that of a live workload. InvalidRequest: a field is out of its range, or no device
            could ever hold it; with the book.
    """
    before = state.records.get(spec.name)
    served = any(each.claim.workload == spec.name for each in state.claims.values())
    if served or (before is not None and before.phase not in OVER):
        phase = before.phase if before else "served by Serve"
        raise Conflict(f"workload {spec.name!r} exists and is {phase}; cancel it or choose another name")
    if state.seats_of(spec.name, also_leaving=True):
        raise Conflict(f"the earlier workload {spec.name!r} has not left its device yet; ask again")
    if spec.kind in ONE_COPY and spec.replicas > 1:
        raise InvalidRequest(f"replicas: {spec.kind} work has one copy, {spec.replicas} are asked for", "replicas")
    _check_fields(state, spec)
    _check_memory(state, spec)
    record = Record(WorkloadState(spec, reason="waits for the next tick"), now_s)
    state.records.pop(spec.name, None)  # the newest comes last
    state.records[spec.name] = record
    return record


def preempt(state: PoolState, applier: Applier, name: str, reason: str) -> Record:
    """Checkpoint and leave the device, until `resume`. Raises NotFound; Conflict when its phase does not allow it."""
    record = known(state, name)
    record.require("preempted", "be preempted")
    for seat in state.seats_of(name):
        applier.leave(seat, "preempt", reason)
    record.goes("preempted", reason)
    record.held = True
    applier.note(name, f"preempt {name}", reason)
    return record


def cancel(state: PoolState, applier: Applier, name: str, reason: str) -> Record:
    """End it for good. Raises as `preempt`."""
    record = known(state, name)
    record.require("cancelled", "be cancelled")
    for seat in state.seats_of(name):
        applier.leave(seat, "stop", reason)
    record.goes("cancelled", reason)
    applier.note(name, f"cancel {name}", reason)
    return record


def resume(state: PoolState, applier: Applier, name: str) -> Record:
    """Back into the queue: of what was preempted, failed or was parked. Raises as `preempt`."""
    record = known(state, name)
    if record.phase not in RESUMABLE:
        raise Conflict(f"{name} is {record.phase} and cannot be resumed; that can: {', '.join(RESUMABLE)}")
    record.goes("queued", "resumed")
    record.held, record.crashes_s = False, ()
    applier.note(name, f"resume {name}", "it was asked for")
    return record


def migrate(state: PoolState, applier: Applier, name: str, device: str, health: DeviceHealth) -> Record:
    """Move it to another device.

    Raises:
        NotFound: no such workload, or no such device; lists the known.
        Conflict: its phase does not allow it, or the device is not for it or has no room; with the book.
    """
    record, there = known(state, name), state.ledger.device(device)
    record.require("migrating", "be migrated")
    if there.kind not in record.spec.tier:
        raise Conflict(f"{device} is a {there.kind}, {name} wants {' or '.join(record.spec.tier)}")
    seats = [seat for seat in state.seats_of(name) if seat.device != device]
    if health != "alive" or not seats:
        why = f"is {health}" if health != "alive" else f"has {name} already"
        raise Conflict(f"{device} {why}; {state.ledger.book()}")
    applier.move(seats[0], device, f"moves to {device}, as it was asked for")
    applier.note(name, f"migrate {name} from {seats[0].device} to {device}", "it was asked for")
    return record


def warn(state: PoolState, applier: Applier, reason: str) -> None:
    """Let interruptible work save what it has, and go on; what has just done so need not."""
    for seat in state.seats.values():
        record, status = state.records.get(seat.workload), seat.status
        if record is None or status is None or seat.leaving is not None or RANK[record.spec.rank] == 0:
            continue
        if status.checkpointed_s is None or status.checkpointed_s > FRESH_S:
            applier.warn(seat, reason)


def known(state: PoolState, name: str) -> Record:
    """Raises NotFound listing the known names."""
    if name not in state.records:
        names = [*state.records, *sorted({each.claim.workload for each in state.claims.values()})]
        raise NotFound(f"no workload {name!r:.80} to change; known: {', '.join(names) or 'none'}")
    return state.records[name]


def _check_fields(state: PoolState, spec: WorkloadSpec) -> None:
    """A spec that a client made without having it checked."""
    try:
        WorkloadSpec.model_validate(spec.model_dump(warnings=False))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"])) or "body"
        raise InvalidRequest(f"{field}: {first['msg']}; {state.ledger.book()}", field) from None


def _check_memory(state: PoolState, spec: WorkloadSpec) -> None:
    sizes = [device.memory_bytes for device in state.ledger.devices() if device.kind in spec.tier]
    if sizes and spec.memory_bytes > max(sizes):
        raise InvalidRequest(
            f"memory_bytes: {spec.memory_bytes} is above the {max(sizes)} of the largest device of its tiers; "
            f"{state.ledger.book()}",
            "memory_bytes",
        )
