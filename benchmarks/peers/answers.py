"""Whether two arms answer the same."""

from __future__ import annotations

from collections.abc import Sequence

import httpx

from benchmarks.peers.arms import Answer, Arm, NotMeasured

TOLERANCE = 1e-5
"""Of scores, relative to their size above 1: what float32 sums in another order may differ by."""


def ask(arm: Arm, port: int, users: Sequence[str], k: int) -> list[Answer]:
    """The arm's answers to users one after another.

    Raises:
        NotMeasured: a request failed, or its answer is not what the arm's replies look like.
    """
    answers = []
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10, trust_env=False) as client:
        for user_id in users:
            reply = client.post(arm.path, json=arm.body(user_id, k))
            if reply.status_code != 200:
                raise NotMeasured(f"user {user_id}: {reply.status_code} {reply.text[:300]}")
            try:
                answers.append(arm.understand(reply.content))
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise NotMeasured(f"user {user_id}: {error!r} in {reply.text[:300]}") from error
    return answers


def check(expected: Sequence[Answer], found: Sequence[Answer], users: Sequence[str]) -> None:
    """Raises NotMeasured naming the first user whose answers differ by more than ties in another order."""
    for user_id, one, other in zip(users, expected, found, strict=True):
        if not same(one, other):
            raise NotMeasured(f"user {user_id} gets {other}, Recpool gives {one}")


def same(one: Answer, other: Answer) -> bool:
    """Equal scores at every place, and equal items except where scores tie.

    At the last place the item it ties with may lie below the cut.
    """
    (ids, scores), (other_ids, other_scores) = one, other
    if len(ids) != len(other_ids) or len(scores) != len(other_scores):
        return False
    if not all(map(_near, scores, other_scores)):
        return False
    return all(
        mine == theirs or place == len(ids) - 1 or _ties(scores, place)
        for place, (mine, theirs) in enumerate(zip(ids, other_ids, strict=True))
    )


def _ties(scores: Sequence[float], place: int) -> bool:
    around = [*scores[max(0, place - 1) : place], *scores[place + 1 : place + 2]]
    return any(_near(scores[place], other) for other in around)


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= TOLERANCE * max(1.0, abs(one))
