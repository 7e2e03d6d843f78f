"""Requests that a gateway asks itself: the path of a caller's in this process, without being recorded."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import httpx
from starlette.types import ASGIApp

HEADERS = {"X-Priority": "low"}
"""Callers go first."""
SAMPLE = 64
"""Users to draw from."""


class OwnCalls:
    """Asks for recommendations for users that the live release knows, so that nothing on the way grows cold.

    Args:
        users: so many of them, or fewer.
    """

    def __init__(self, http: ASGIApp, users: Callable[[int], Sequence[str]]):
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=http), base_url="http://gateway", headers=HEADERS, trust_env=False
        )
        self._users = users

    async def __call__(self, count: int = 1) -> None:
        """Ask one after the other; whatever comes back is good enough."""
        users = self._users(SAMPLE) or [None]
        for _ in range(count):
            await self._client.post("/v1/recommend", json={"user_id": random.choice(users), "dry_run": True})
