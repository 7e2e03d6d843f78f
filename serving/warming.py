"""Warm-up of a release in the process that is to serve it: requests of its own, before the first caller's.

What is made on demand is made then: memory of the model runtimes for each size of batch, pages of mapped tables, what
replies say of items. Users of the release are asked for, with the histories that the store has of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from configs.settings import ServingSettings
from serving.lanes import RunBatch
from serving.preparation import prepare_recommend
from serving.release import Release
from serving.replies import build_reply
from serving.schemas import RecommendRequest

log = logging.getLogger("recpool.service")
RUNS = 3
"""Batches of each size: the first pays for what is made on demand, and the others show that nothing is left."""
LIMIT_S = 10.0
"""After which the rest is left to callers: a stage elsewhere may not be there yet."""
BESIDE_ROWS = 8
"""Rows in a batch at most while another release serves in the same process: its callers wait for a batch to end."""


def batch_sizes(most_rows: int) -> list[int]:
    """1, 2, 4 and so on, up to the largest that may come."""
    return [*(1 << power for power in range((most_rows - 1).bit_length())), most_rows]


def sample_users(release: Release, count: int) -> list[str]:
    """Users of the release, spread over all of them; fewer where there are not so many."""
    users = release.encoder.user_ids.values
    count = min(count, len(users))
    return [str(users[place * len(users) // count]) for place in range(count)]


async def warm_up(run: RunBatch, release: Release, settings: ServingSettings, beside: bool) -> None:
    """A favour to callers: a release that does not take it serves all the same, and the log says why.

    Args:
        run: works on rows as for callers.
        beside: another release serves in this process meanwhile.
    """
    most_rows = min(settings.max_batch_rows, BESIDE_ROWS) if beside else settings.max_batch_rows
    try:
        batches = await answer(run, release, batch_sizes(most_rows), settings.default_k)
    except Exception:
        log.exception("release %s is not warm", release.version)
    else:
        log.info("release %s is warm after %d batches", release.version, batches)


async def answer(run: RunBatch, release: Release, sizes: Sequence[int], default_k: int) -> int:
    """Answer batches of each size, and return how many that were; answers go nowhere."""
    began_s, batches = time.monotonic(), 0
    requests = [RecommendRequest.model_validate({"user_id": user}) for user in sample_users(release, max(sizes) * RUNS)]
    requests = requests or [RecommendRequest.model_validate({})]
    for size in sizes:
        for turn in range(RUNS):
            now_s = time.monotonic()
            if now_s - began_s > LIMIT_S:
                return batches
            asked = [requests[(turn * size + place) % len(requests)] for place in range(size)]
            rows = [prepare_recommend(request, release, now_s + LIMIT_S, default_k) for request in asked]
            for row, slate in zip(rows, await run(rows), strict=True):
                build_reply("", row, slate, release, now_s, time.monotonic(), debug=False)
            batches += 1
    return batches
