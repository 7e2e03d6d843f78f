"""The page cursor: which items earlier pages gave, small enough to travel with the caller.

It holds a 32-bit hash per item, so it outlives a change of release and of replica and the service
keeps no session. Two ids with one hash would at worst hide one item from a later page.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Sequence

import numpy as np

from configs.errors import InvalidRequest

MAX_ITEMS = 2_500
_MAGIC = b"c1"


def item_hashes(ids: Sequence[str]) -> np.ndarray:
    """[n] uint32 hash of each external id."""
    return np.array([zlib.crc32(i.encode("utf-8")) for i in ids], np.uint32)


def encode_cursor(hashes: np.ndarray) -> str:
    """Pack the hashes [n] uint32 of every item given so far."""
    return base64.urlsafe_b64encode(_MAGIC + hashes.astype("<u4").tobytes()).decode("ascii")


def decode_cursor(cursor: str) -> np.ndarray:
    """[n] uint32. Raises InvalidRequest when the text was not made by `encode_cursor`."""
    try:
        raw = base64.b64decode(cursor.encode("ascii"), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError, ValueError):
        raw = b""
    body = raw[len(_MAGIC) :]
    if not raw.startswith(_MAGIC) or len(body) % 4 or len(body) > 4 * MAX_ITEMS:
        raise InvalidRequest("cursor: not one this service gave; start again without a cursor", "cursor")
    return np.frombuffer(body, "<u4")
