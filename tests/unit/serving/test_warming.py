"""A release that warms up answers requests of its own before it is given callers'; that it cannot is no reason not to
serve."""

from __future__ import annotations

import time

import pytest

from configs.settings import ServingSettings
from serving import warming
from serving.warming import BESIDE_ROWS, LIMIT_S, RUNS, batch_sizes, sample_users, warm_up


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (33, [1, 2, 4, 8, 16, 32, 33])]
)
def test_sizes_double_up_to_the_largest(most, sizes):
    assert batch_sizes(most) == sizes


@pytest.fixture
def release(make_release):
    return make_release()


class Runs:
    """Answers as the cascade does, and counts the rows of each batch."""

    def __init__(self, cascade, clock=None):
        self.cascade, self.rows, self.users, self.clock = cascade, [], set(), clock

    async def __call__(self, rows):
        self.rows.append(len(rows))
        self.users |= {row.user_id for row in rows}
        if self.clock is not None:
            self.clock.now_s += 1.0
        return await self.cascade.recommend(rows)


class Clock:
    def __init__(self) -> None:
        self.now_s = time.monotonic()

    def monotonic(self) -> float:
        return self.now_s


SERVING = ServingSettings(max_batch_rows=16)


async def test_every_size_of_batch_is_answered_several_times_for_users_the_release_knows(release, make_cascade):
    runs = Runs(make_cascade(release))
    await warm_up(runs, release, SERVING, beside=False)
    assert runs.rows == [size for size in (1, 2, 4, 8, 16) for _ in range(RUNS)]
    assert runs.users <= set(release.encoder.user_ids.values) and len(runs.users) > 1


async def test_beside_callers_of_another_release_batches_stay_short(release, make_cascade):
    runs = Runs(make_cascade(release))
    await warm_up(runs, release, SERVING, beside=True)
    assert max(runs.rows) == BESIDE_ROWS


async def test_it_ends_in_time_and_leaves_the_rest_to_callers(release, make_cascade, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(warming, "time", clock)
    runs = Runs(make_cascade(release), clock)
    batches = await warming.answer(runs, release, [1] * 100, 10)
    assert batches == len(runs.rows) == LIMIT_S + 1


async def test_what_does_not_take_it_is_logged_and_serves(release, caplog):
    async def broken(rows):
        raise KeyError("encoder")

    await warm_up(broken, release, SERVING, beside=False)
    assert "is not warm" in caplog.text


def test_users_are_spread_over_all_there_are(release):
    users = list(release.encoder.user_ids.values)
    assert sample_users(release, 2) == [users[0], users[len(users) // 2]]
    assert len(set(sample_users(release, 10_000))) == len(users)
