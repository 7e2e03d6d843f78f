"""One identity for one call, however often it is sent: a replay by a proxy or a client must not count twice."""

from __future__ import annotations

import hashlib
import os

import orjson


def recommendation_id(key: str | None, *scope: str | None) -> str:
    """32 hexadecimal digits: the same for the same key and scope, random without a key.

    The event log ignores a repeated id, so a call that is answered twice leaves one impression. It keeps
    the first; the answers themselves are worked out each time and may differ.

    Args:
        key: the caller's or, failing that, the one HAProxy gave the call.
        scope: what tells calls apart that carelessly share a key: whom the slate is for, where, and which page.
    """
    if key is None:
        return os.urandom(16).hex()
    return hashlib.blake2b(orjson.dumps([key, *scope]), digest_size=16).hexdigest()
