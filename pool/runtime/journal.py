"""The controller's journal: the ledger and every workload, in one file that is replaced whole.

Times are written as seconds since 1970, since the monotonic clock of one machine says nothing on another.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import Field, ValidationError

from configs.branch import Branch
from configs.errors import ArtifactError
from features.files import write_atomically
from pool.ledger import Ledger
from pool.runtime.messages import Claim
from pool.runtime.records import Record
from pool.runtime.state import Fenced
from pool.workload import WorkloadPhase, WorkloadSpec, WorkloadState

FILE = "journal.json"
REMEDY = "it was set aside; workloads that run are found again, the others must be submitted anew"


class RecordRow(Branch):
    spec: WorkloadSpec
    phase: WorkloadPhase
    reason: str
    device: str | None
    restarts: int
    queued_at_s: float
    crashes_at_s: tuple[float, ...]
    held: bool
    result: dict[str, Any]
    placement: str = ""


class JournalRow(Branch):
    format: Literal[1]
    epoch: int = Field(ge=1)
    ledger: str = Field(description="as Ledger.to_json wrote it")
    workloads: tuple[RecordRow, ...]
    claims: dict[str, Claim] = Field(description="of serving replicas, by id of the lease")


class Journal:
    """One controller's hand on the journal of a folder.

    Args:
        since_s: seconds since 1970 at which the monotonic clock showed 0.
    """

    def __init__(self, folder: Path, since_s: float):
        self.path = folder / FILE
        self._since_s = since_s
        self._written = b""
        self._stamp: tuple[int, int] | None = None

    def read(self) -> tuple[Ledger, dict[str, Record], dict[str, Claim]] | None:
        """What was written last; None when nothing was. A damaged file is set aside.

        Raises:
            ArtifactError: it was damaged; says what is lost.
        """
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            row = JournalRow.model_validate_json(content)
            ledger = Ledger.from_json(row.ledger.encode(), str(self.path))
        except (ValidationError, ArtifactError) as error:
            self.path.replace(self.path.with_suffix(".damaged"))
            raise ArtifactError(f"{self.path}: not a readable journal ({error}); {REMEDY}") from error
        records = {each.spec.name: _record(each, self._since_s) for each in row.workloads}
        return ledger, records, dict(row.claims)

    def write(self, ledger: Ledger, records: Mapping[str, Record], claims: Mapping[str, Claim]) -> None:
        """Replace the file, unless it says the same already.

        Raises:
            Fenced: a controller of a newer epoch has written it.
        """
        body = {
            "format": 1,
            "epoch": ledger.epoch,
            "ledger": ledger.to_json().decode(),
            "workloads": [_row(record, self._since_s) for record in records.values()],
            "claims": {lease: _plain(claim) for lease, claim in claims.items()},
        }
        content = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
        if content == self._written:
            return
        self._refuse_if_newer(ledger.epoch)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, content)
        self._written, self._stamp = content, self._stat()

    def _refuse_if_newer(self, epoch: int) -> None:
        if self._stamp == self._stat():
            return
        try:
            there = int(orjson.loads(self.path.read_bytes())["epoch"])
        except (OSError, ValueError, KeyError, TypeError):
            return
        if there > epoch:
            raise Fenced(f"{self.path}: epoch {epoch} is over, a controller of epoch {there} keeps this journal")

    def _stat(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)  # noqa: PTH116
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns


def _plain(claim: Claim) -> dict[str, Any]:
    """A claim without what changes from second to second, so that the journal is written when something changed."""
    return {**vars(claim), "lease": None, "p99_ms": None, "queue": 0, "batches": ()}


def _row(record: Record, since_s: float) -> dict[str, Any]:
    state = record.state
    return {
        "spec": state.spec.model_dump(mode="json"),
        "phase": state.phase,
        "reason": state.reason,
        "device": state.device,
        "restarts": state.restarts,
        "queued_at_s": record.queued_s + since_s,
        "crashes_at_s": [at_s + since_s for at_s in record.crashes_s],
        "held": record.held,
        "result": dict(record.result),
        "placement": record.placement,
    }


def _record(row: RecordRow, since_s: float) -> Record:
    return Record(
        state=WorkloadState(row.spec, row.phase, row.reason, row.device, row.restarts),
        queued_s=row.queued_at_s - since_s,
        crashes_s=tuple(at_s - since_s for at_s in row.crashes_at_s),
        held=row.held,
        result=row.result,
        placement=row.placement,
    )
