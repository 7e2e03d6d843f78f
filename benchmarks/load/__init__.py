"""The load generator of every benchmark: open loop, keep-alive HTTP/1.1, some tens of microseconds a request.

Open loop means that a request is sent when its time has come, whether or not earlier ones were answered, so
a server that stalls cannot slow its callers down; and **latency counts from the scheduled time**. When every
connection is busy another is opened, up to `Load.connections`; beyond that requests wait for one, which
counts as latency too and is told (`Outcomes.bound_hit`).

    from benchmarks.load import Load, best_rate, fire, poisson, post, start

    requests = [post("/v1/recommend", orjson.dumps({"user_id": user, "k": 10})) for user in users]
    load = Load(port=8000, requests=requests, times_s=poisson(300, 10, seed=1), contains=b'"degraded":[]')
    outcomes = fire(load)                     # blocks; its own event loop
    outcomes = await fire_async(load)         # in the caller's event loop
    with start(load) as running:              # in a process of its own; returns once the first request is due
        time.sleep(3)
        os.kill(victim, signal.SIGKILL)       # time.monotonic() here and running.started_s are one clock
        outcomes = running.outcomes()
    print(outcomes.summary().row())

Request i sends ``requests[i % len(requests)]`` at ``times_s[i]`` seconds after the start; a list of times of
your own does as well as `poisson` or `constant`. Times are kept within about half a millisecond: the event
loop's timers have whole milliseconds, so a request may leave that much early, and then counts from when it left.

`Outcomes` has one array a column (`scheduled_s`, `latency_s`, `status`, `retried`, `found`), `bodies` with
``keep_bodies=True``, and `summary()`. Status 0 stands for no answer: connection refused or lost, or nothing
within `Load.timeout_s`. `found` says whether an answer of status 200 contains `Load.contains`.
With ``retry=True`` a request that got no answer, 502 or 503 is sent once more, as a client library would.

`best_rate(measure)` finds the best sustained rate; ``lambda rate: fire(load.at(poisson(rate, 5, seed=2))).summary()``
is a `measure`. To keep the benchmark's own work away from the measurement use ``start`` there as well.
"""

from __future__ import annotations

from benchmarks.load.plan import Load, constant, get, poisson, post
from benchmarks.load.process import Running, start
from benchmarks.load.run import fire, fire_async
from benchmarks.load.summary import COLUMNS, BestRate, Outcomes, Step, Summary, best_rate

__all__ = [
    "COLUMNS",
    "BestRate",
    "Load",
    "Outcomes",
    "Running",
    "Step",
    "Summary",
    "best_rate",
    "constant",
    "fire",
    "fire_async",
    "get",
    "poisson",
    "post",
    "start",
]
