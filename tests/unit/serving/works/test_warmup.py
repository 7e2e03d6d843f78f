"""A warmed-up release answers as the serving one does, and is ready to take over."""

from __future__ import annotations

import asyncio
import time

import pytest

from configs.errors import ArtifactError, ConfigError, NotFound
from pool import checkpoints
from serving.preparation import Row
from serving.works.holdout import Holdout, HoldoutStore
from serving.works.options import WarmupOptions
from serving.works.warmup import WarmupWork

BODIES = tuple({"user_id": f"u{n}", "k": 5} for n in range(6))


@pytest.fixture
def make(world, trained, home):
    store = HoldoutStore(world.dataset(), Holdout.of(world.dataset(), 100, 0), 100, time.time())
    works = []

    def build(**options) -> WarmupWork:
        chosen = {"version": "1", "requests": BODIES, "batch_sizes": (1, 4), "runs": 3, **options}
        works.append(WarmupWork(world.make_settings(home), WarmupOptions(**chosen), store))
        return works[-1]

    yield build
    for work in works:
        work.close()


def answers(work: WarmupWork) -> tuple[tuple[str, ...], ...]:
    """One user at a time."""
    value = work.cascade.release.encoder.item_ids.value
    rows = [Row(time.monotonic() + 60, k=body["k"], user_id=body["user_id"]) for body in BODIES]
    slates = [asyncio.run(work.cascade.recommend([row]))[0] for row in rows]
    return tuple(tuple(value(int(item)) for item in slate.items) for slate in slates)


def test_it_answers_every_batch_size_and_reports_its_share(world, make):
    work, shares = make(), [0.0]
    while work.step(1):
        shares.append(work.progress().share)
    assert shares == sorted(shares) and shares[-1] == 1.0
    result = work.result()
    assert [(b["batch_rows"], b["runs"]) for b in result["batches"]] == [(1, 2), (4, 2)]
    assert all(0 < b["p50_ms"] <= b["p99_ms"] for b in result["batches"])
    assert result["checked"] == 3 * 1 + 3 * 4
    assert all(len(found) == 5 for found in answers(work))


def test_the_serving_releases_answers_pass_as_reference_and_others_do_not(world, make):
    first = make()
    world.run(first)
    reference = answers(first)
    second = make(reference=reference)
    world.run(second)
    assert second.result()["compared"]
    wrong = (reference[0][::-1], *reference[1:])
    third = make(reference=wrong)
    with pytest.raises(ArtifactError, match="user 'u0' gets"):
        world.run(third)


def test_without_requests_the_releases_users_are_asked_for(world, make):
    work = make(requests=())
    world.run(work)
    assert work.result()["checked"] == 15


def test_restored_it_warms_another_process_anew(world, make, tmp_path):
    work = make()
    work.step(4)
    path = checkpoints.write(tmp_path, work)
    again = make()
    again.restore(path)
    world.run(again)
    assert again.result()["checked"] == 15


def test_what_cannot_be_warmed_is_named(make):
    with pytest.raises(NotFound, match="no release '9'"):
        make(version="9")
    with pytest.raises(NotFound, match="no release serves"):
        make(version=None)
    with pytest.raises(ConfigError, match="requests: number 0"):
        make(requests=({"k": "many"},))
    with pytest.raises(ConfigError, match="2 answers for 6 requests"):
        make(reference=((), ()))
