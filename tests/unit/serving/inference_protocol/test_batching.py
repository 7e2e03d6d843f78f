"""Requests that wait share batches: nobody gets another's rows, the urgent go first, and what is late is told."""

from __future__ import annotations

import threading
import time
from concurrent.futures import wait

import numpy as np
import pytest

from configs.errors import Overloaded, RecpoolError, Unavailable
from serving.inference_protocol.batching import Batcher, Job
from serving.inference_protocol.config import BatchPolicy
from serving.inference_protocol.statistics import ModelStatistics


class Held:
    """A model that doubles its input, keeps what batches came, and waits to be let go."""

    def __init__(self) -> None:
        self.batches: list[list[float]] = []
        self.go = threading.Event()
        self.is_busy = threading.Event()

    def __call__(self, inputs):
        self.batches.append(inputs["x"][:, 0].tolist())
        self.is_busy.set()
        assert self.go.wait(10)
        if (inputs["x"] < 0).any():
            raise ValueError("negative")
        return {"y": inputs["x"] * 2}


@pytest.fixture
def held():
    return Held()


def batcher_of(run, max_queued=100, **policy) -> Batcher:
    policy = BatchPolicy(**{"max_rows": 4, "is_dynamic": True, **policy})
    return Batcher("m", run, policy, 1, max_queued, ModelStatistics())


def job(value: float, rows: int = 1, level: int = 2, width: int = 1, **more) -> Job:
    return Job({"x": np.full((rows, width), value, np.float32)}, rows, level, **more)


def first_then(batcher: Batcher, held: Held, *jobs: Job) -> list:
    """Occupy the only instance, let the others queue up, and let go."""
    answers = [batcher.submit(job(100))]
    assert held.is_busy.wait(10)
    answers += [batcher.submit(each) for each in jobs]
    held.go.set()
    wait(answers, 10)
    batcher.close()
    return answers[1:]


def test_an_idle_model_answers_at_once_and_alone(held):
    held.go.set()
    batcher = batcher_of(held)
    assert batcher.submit(job(3)).result(10)["y"].tolist() == [[6.0]]
    batcher.close()
    assert held.batches == [[3.0]]


def test_those_who_wait_share_a_batch_and_each_gets_its_own_rows(held):
    jobs = [job(value, rows) for value, rows in ((1, 1), (2, 2), (3, 1))]
    answers = first_then(batcher_of(held), held, *jobs)
    assert held.batches == [[100.0], [1.0, 2.0, 2.0, 3.0]]
    assert [each.result()["y"].tolist() for each in answers] == [[[2.0]], [[4.0], [4.0]], [[6.0]]]


def test_a_batch_holds_no_more_rows_than_it_may(held):
    first_then(batcher_of(held), held, *(job(value, 2) for value in range(4)))
    assert [len(batch) for batch in held.batches] == [1, 4, 4]


def test_only_like_shapes_share_a_batch(held):
    first_then(batcher_of(held), held, job(1), job(2, width=3), job(3))
    assert held.batches == [[100.0], [1.0, 3.0], [2.0]]


def test_without_dynamic_batching_each_goes_alone(held):
    first_then(batcher_of(held, is_dynamic=False), held, job(1), job(2))
    assert held.batches == [[100.0], [1.0], [2.0]]


def test_the_urgent_go_first(held):
    first_then(batcher_of(held, max_rows=1), held, job(1, level=3), job(2, level=2), job(3, level=1))
    assert held.batches == [[100.0], [3.0], [2.0], [1.0]]


def test_only_the_request_that_is_wrong_fails(held):
    good, bad, also = first_then(batcher_of(held), held, job(1), job(-1), job(3))
    assert good.result()["y"].tolist() == [[2.0]] and also.result()["y"].tolist() == [[6.0]]
    with pytest.raises(RecpoolError, match="negative"):
        bad.result()


def test_one_more_than_may_wait_is_refused(held):
    batcher = batcher_of(held, max_queued=2)
    batcher.submit(job(100))
    assert held.is_busy.wait(10)
    for _ in range(2):
        batcher.submit(job(1))
    with pytest.raises(Overloaded, match="maximum queue size"):
        batcher.submit(job(1))
    held.go.set()
    batcher.close()


def test_what_waited_too_long_is_told_and_not_computed(held):
    late, fine = first_then(batcher_of(held, max_rows=1), held, job(1, deadline_s=time.monotonic()), job(2))
    with pytest.raises(Unavailable, match="timeout expired"):
        late.result()
    assert fine.result()["y"].tolist() == [[4.0]]
    assert [1.0] not in held.batches


def test_who_has_left_is_not_worked_for(held):
    batcher = batcher_of(held)
    batcher.submit(job(100))
    assert held.is_busy.wait(10)
    assert batcher.submit(job(1)).cancel()
    held.go.set()
    batcher.close()
    assert held.batches == [[100.0]]


def test_closing_answers_those_who_wait_and_takes_no_more(held):
    batcher = batcher_of(held)
    answers = [batcher.submit(job(value)) for value in range(6)]
    held.go.set()
    batcher.close()
    assert [each.result()["y"][0, 0] for each in answers] == [0, 2, 4, 6, 8, 10]
    with pytest.raises(Unavailable):
        batcher.submit(job(1))


def test_a_full_batch_does_not_wait_for_the_delay(held):
    held.go.set()
    batcher = batcher_of(held, delay_s=600.0, preferred=(2,))
    answers = [batcher.submit(job(1, 4)), batcher.submit(job(2, 2))]
    assert [len(each.result(10)["y"]) for each in answers] == [4, 2]
    batcher.close()


def test_a_smaller_batch_waits_for_others(held):
    held.go.set()
    batcher = batcher_of(held, delay_s=600.0)
    answers = [batcher.submit(job(value)) for value in range(4)]
    wait(answers, 10)
    assert held.batches == [[0.0, 1.0, 2.0, 3.0]]
    batcher.close()


def test_an_output_without_the_batch_s_rows_is_an_error_that_says_what_to_do():
    batcher = batcher_of(lambda inputs: {"y": np.zeros((1, 1))})
    with pytest.raises(RecpoolError, match="max_batch_size to 0"):
        batcher.submit(job(1, 2)).result(10)
    batcher.close()


def test_statistics_count_each_request_once(held):
    batcher = batcher_of(held)
    first_then(batcher, held, job(1), job(-1), job(3))
    counted = batcher._statistics
    assert (counted.durations["success"].count, counted.durations["fail"].count) == (3, 1)
    assert counted.inferences == 3
    assert sum(batch.compute_infer.count for batch in counted.batches.values()) == counted.executions
