"""The ledger on disk: one checked JSON document that gives back exactly the book it was made from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import orjson
from pydantic import Field, ValidationError

from configs.branch import Branch
from configs.errors import ArtifactError, RecpoolError
from pool.device import Device
from pool.lease import FIRST_EPOCH, LAST_EPOCH, Lease

FORMAT = 1
REMEDY = "remove it and let the controller rebuild the book from its actors"


class LedgerRecord(Branch):
    """What a journal holds."""

    format: Literal[1]
    epoch: int = Field(ge=FIRST_EPOCH, le=LAST_EPOCH)
    granted: int = Field(ge=0, le=LAST_EPOCH, description="leases granted in this epoch; the next id follows it")
    devices: tuple[Device, ...]
    leases: tuple[Lease, ...] = Field(description="oldest grant first")
    sha256: str = Field(description="of the other fields, as orjson writes them with sorted keys")


def encode(epoch: int, granted: int, devices: Sequence[Device], leases: Sequence[Lease]) -> bytes:
    """One JSON object, UTF-8, with sorted keys."""
    body = {
        "format": FORMAT,
        "epoch": epoch,
        "granted": granted,
        "devices": [_row(device) for device in devices],
        "leases": [vars(lease) for lease in leases],
    }
    return orjson.dumps({**body, "sha256": _digest(body)}, option=orjson.OPT_SORT_KEYS)


def decode(content: bytes, source: str) -> LedgerRecord:
    """Read what ``encode`` wrote.

    Args:
        source: the file's name, for the message.
    Raises:
        ArtifactError: not JSON, a field missing, unknown or out of range, or a changed value; names which.
    """
    try:
        record = LedgerRecord.model_validate_json(content, strict=True)
        body = orjson.loads(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "document"
        raise damaged(source, f"{place}: {first['msg']}") from error
    except (RecpoolError, ValueError) as error:  # a device out of range; JSON that only pydantic's parser forgives
        raise damaged(source, str(error.args[0])) from error
    if _digest({name: value for name, value in body.items() if name != "sha256"}) != record.sha256:
        raise damaged(source, "sha256: the values differ from their checksum; it was changed or cut short")
    return record


def damaged(source: str, why: str) -> ArtifactError:
    return ArtifactError(f"{source}: not a readable ledger journal ({why}); {REMEDY}")


def _row(device: Device) -> dict[str, Any]:
    # A price given as a whole number is read back as a float; written as one, both journals are the same bytes.
    return {**vars(device), "topology": vars(device.topology), "price_per_hour": float(device.price_per_hour)}


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()
