"""The load generator, against a small server of its own."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import numpy as np
import pytest

from benchmarks.load import Load, Outcomes, Summary, best_rate, constant, fire_async, get, poisson, post, start
from benchmarks.load.connection import Malformed, parse_reply
from benchmarks.load.run import Run

Answer = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[int]:
    """A server that hands every request's head and body to `answer`; its port."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
                await answer(head + await reader.readexactly(length), writer)
        writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()


def reply(body: bytes, status: int = 200) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


async def echo(request: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(reply(request.partition(b"\r\n\r\n")[2]))


async def test_every_request_is_sent_once_in_order_of_its_time_and_keeps_its_own_answer():
    seen = []

    async def note(request: bytes, writer: asyncio.StreamWriter) -> None:
        seen.append(request)
        await echo(request, writer)

    bodies = [b"%d" % i for i in range(40)]
    async with server(note) as port:
        load = Load(port, [post("/", body) for body in bodies], constant(1_000, 0.08), keep_bodies=True)
        outcomes = await fire_async(load)
    assert outcomes.bodies == bodies + bodies
    assert sorted(seen) == sorted([post("/", body) for body in bodies] * 2)
    assert outcomes.summary().statuses == {200: 80}


async def test_a_load_that_is_stopped_waits_for_what_was_sent_and_tells_of_nothing_else():
    seen = 0

    async def count(request: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        seen += 1
        await asyncio.sleep(0.02)
        await echo(request, writer)

    async with server(count) as port:
        run = Run(Load(port, [post("/", b"1")], constant(200, 60)), time.monotonic())
        asyncio.get_running_loop().call_later(0.1, run.stop)
        outcomes = await run.finished()
    assert 0 < len(outcomes.status) == seen < 200
    assert outcomes.summary().statuses == {200: seen}


async def test_a_stalled_server_neither_stops_the_sending_nor_shortens_the_latency():
    stall = asyncio.Event()
    arrived = 0

    async def stalled(request: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal arrived
        arrived += 1
        await stall.wait()
        await echo(request, writer)

    async with server(stalled) as port:
        firing = asyncio.create_task(fire_async(Load(port, [get("/")], constant(100, 0.2))))
        while arrived < 20:  # all twenty arrive although none was answered
            await asyncio.sleep(0.005)
        stall.set()
        outcomes = await firing
    assert outcomes.summary().answered == 1
    # All were answered together, so the earlier a request was due the longer it took: by 190 ms from first to last.
    assert outcomes.latency_s[0] - outcomes.latency_s[-1] == pytest.approx(0.19, abs=0.1)


async def test_requests_beyond_the_most_connections_wait_and_it_is_told():
    open_now = most = 0

    async def slow(request: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        await asyncio.sleep(0.01)
        open_now -= 1
        await echo(request, writer)

    async with server(slow) as port:
        outcomes = await fire_async(Load(port, [get("/")], np.zeros(12), connections=3))
    assert outcomes.summary().statuses == {200: 12}
    assert most == 3
    assert outcomes.bound_hit


async def test_chunked_answers_and_those_that_end_with_the_connection_are_read():
    async def chunked(request: bytes, writer: asyncio.StreamWriter) -> None:
        if request.startswith(b"GET /chunked"):
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
            await asyncio.sleep(0.01)
            writer.write(b"6;x=y\r\n world\r\n0\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\nuntil the end")
            writer.close()

    async with server(chunked) as port:
        requests = [get("/chunked"), get("/closed")]
        outcomes = await fire_async(Load(port, requests, constant(500, 0.012), keep_bodies=True, contains=b"wor"))
    assert outcomes.bodies == [b"hello world", b"until the end"] * 3
    assert outcomes.found.tolist() == [True, False] * 3


async def test_a_connection_that_dies_without_an_answer_has_status_0():
    async def die(request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with server(die) as port:
        outcomes = await fire_async(Load(port, [get("/")], constant(200, 0.02)))
    assert outcomes.summary().statuses == {0: 4}
    assert not np.isnan(outcomes.latency_s).any()


async def test_nobody_listening_has_status_0():
    async with server(echo) as port:
        pass
    outcomes = await fire_async(Load(port, [get("/")], constant(200, 0.02), connections=1, retry=True))
    assert outcomes.summary().statuses == {0: 4}
    assert outcomes.retried.all()


async def test_no_answer_in_time_has_status_0():
    async def never(request: bytes, writer: asyncio.StreamWriter) -> None:
        pass

    async with server(never) as port:
        outcomes = await fire_async(Load(port, [get("/")], constant(200, 0.02), timeout_s=0.1))
    assert outcomes.summary().statuses == {0: 4}
    assert (outcomes.latency_s >= 0.1).all()


@pytest.mark.parametrize("failure", [b"", reply(b"", 503)])
async def test_a_retry_asks_once_more_and_is_told(failure: bytes):
    seen = 0

    async def first_fails(request: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        seen += 1
        if seen > 1:
            await echo(request, writer)
        elif failure:
            writer.write(failure)
        else:
            writer.close()

    async with server(first_fails) as port:
        outcomes = await fire_async(Load(port, [post("/", b"x")], np.zeros(1), retry=True))
        assert outcomes.summary().statuses == {200: 1}
        assert outcomes.retried.all()
        seen = 0
        outcomes = await fire_async(Load(port, [post("/", b"x")], np.zeros(1)))
        assert outcomes.summary().answered == 0


async def test_a_load_in_its_own_process_comes_back_whole():
    async with server(echo) as port:
        load = Load(port, [post("/", b"abc")], constant(200, 0.1), contains=b"b", keep_bodies=True)

        def run() -> Outcomes:
            with start(load) as running:
                found = running.outcomes()
                assert running.started_s == found.started_s
            return found

        outcomes = await asyncio.to_thread(run)
    assert outcomes.summary().statuses == {200: 20}
    assert outcomes.found.all()
    assert outcomes.bodies == [b"abc"] * 20


def test_bytes_that_are_no_answer_are_refused():
    for wrong in (b"garbage", b"HTTP/1.1 abc\r\n\r\n", reply(b"abc") + b"more"):
        with pytest.raises(Malformed):
            parse_reply(wrong)


def test_an_answer_is_complete_at_its_last_byte_and_not_before():
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nTrailer: x\r\n\r\n"
    for whole in (reply(b"abc"), chunked, b"HTTP/1.1 100 Continue\r\n\r\n" + reply(b"abc")):
        assert all(parse_reply(whole[:size]) is None for size in range(len(whole)))
        found = parse_reply(whole)
        assert found is not None and found.body == b"abc" and found.reusable


def test_arrivals_have_their_rate_and_repeat_with_their_seed():
    times = poisson(200, 50, seed=3)
    assert len(times) == pytest.approx(10_000, abs=4 * 100)  # four standard deviations of a Poisson count
    assert np.diff(times).std() == pytest.approx(1 / 200, rel=0.1)  # an exponential's deviation is its mean
    assert (times == poisson(200, 50, seed=3)).all()
    assert not np.array_equal(times, poisson(200, 50, seed=4)[: len(times)])
    assert constant(4, 1).tolist() == [0, 0.25, 0.5, 0.75]


def test_the_search_finds_the_border_of_a_server_that_saturates():
    def measure(rate: float) -> Summary:
        p99 = 5.0 if rate <= 437 else 400.0
        return Summary(1_000, rate, 1.0, 2.0, p99, p99, {200: 1_000})

    found = best_rate(measure, begin=50, resolution=0.02)
    assert 437 / 1.02 <= found.rate <= 437
    assert found.p99_ms == 5


def test_the_search_forgives_one_hiccup_and_goes_below_where_it_began():
    hiccups = iter([True])

    def measure(rate: float) -> Summary:
        good = rate <= 13 and not next(hiccups, False)
        return Summary(1_000, rate, 1.0 if good else 0.9, 2.0, 5.0, 5.0, {200: 1_000})

    assert 13 / 1.05 <= best_rate(measure, begin=100).rate <= 13
    assert best_rate(lambda rate: Summary(1, rate, 0.0, 1.0, 1.0, 1.0, {0: 1})).rate == 0
