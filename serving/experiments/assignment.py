"""Who belongs to which part of the traffic: the same user to the same part, everywhere and for ever.

A user's place between 0 and 1 follows from a hash of the user's id and a salt. A share takes the places below it, so
a share that grows keeps everybody it had, and two salts divide users independently.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

_PLACES = 2.0**53
"""As many as a float tells apart below 1."""


def place_of(user_id: str, salt: str) -> float:
    """The user's place under a salt, uniform in [0, 1)."""
    digest = hashlib.blake2b(user_id.encode("utf-8", "surrogatepass"), digest_size=8, key=_key(salt)).digest()
    return (int.from_bytes(digest, "big") >> 11) / _PLACES


def is_chosen(user_id: str, salt: str, share: float) -> bool:
    """Whether a share of all users, in [0, 1], has this one."""
    return place_of(user_id, salt) < share


def arm_of(user_id: str, salt: str, shares: Sequence[float]) -> int | None:
    """Which of several shares, one behind the other, has the user; None when none has."""
    place, end = place_of(user_id, salt), 0.0
    for arm, share in enumerate(shares):
        end += share
        if place < end:
            return arm
    return None


def _key(salt: str) -> bytes:
    """At most 64 bytes, which is what the hash takes as its key."""
    raw = salt.encode("utf-8", "surrogatepass")
    return raw if len(raw) <= 64 else hashlib.blake2b(raw).digest()
