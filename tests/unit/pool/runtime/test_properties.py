"""Whatever happens in whatever order, no slice has two holders, no work runs twice, and nothing is leaked."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from configs.errors import Conflict, InvalidRequest, NotFound

NAMES = ("tune", "check", "first")
KINDS = {"tune": "finetune", "check": "evaluate", "first": "evaluate"}
REFUSED = (Conflict, InvalidRequest, NotFound)

names = st.sampled_from(NAMES)
asked = st.one_of(
    st.tuples(st.just("submit"), names, st.sampled_from([200, 500, 900])),
    st.tuples(st.just("migrate"), names, st.sampled_from(["gpu-0", "gpu-1"])),
    st.tuples(st.sampled_from(["preempt", "resume", "cancel"]), names, st.just("")),
)
happened = st.tuples(
    st.sampled_from(["obeys", "obeys", "succeeds", "fails", "crashes", "dies", "hangs", "restart", "long"]),
    st.integers(0, 2),
)
events = st.lists(st.one_of(asked, asked, happened), min_size=10, max_size=40)


def ask(run, verb: str, name: str, what: int | str) -> None:
    with suppress(*REFUSED):
        if verb == "submit":
            more = {"priority": "guaranteed"} if name == "first" else {}
            run.submit(name, kind=KINDS[name], min_milli=what, memory_bytes=int(what) << 20, **more)
        elif verb == "migrate":
            run.controller.migrate(name, str(what))
        elif verb == "resume":
            run.controller.resume(name)
        else:
            getattr(run.controller, verb)(name, "asked for")


def happen(run, what: str, number: int) -> None:
    ground = run.ground
    hosts = sorted(key for key, status in ground.hosts.items() if status.phase != "ended")
    if what != "dies":  # one that hangs does nothing else
        hosts = [key for key in hosts if key not in ground.silent]
    if what == "long":
        run.clock.now_s += 20
    if not hosts or what == "long":
        return
    lease = hosts[number % len(hosts)]
    orders = [verb for told, verb in ground.told if told == lease and verb != "warn"]
    match what:
        case "obeys" if orders:
            ground.ends(lease, {"preempt": "preempted", "stop": "stopped"}[orders[-1]])
        case "succeeds":
            ground.ends(lease, "succeeded")
        case "fails":
            ground.ends(lease, "failed", "wrong")
        case "crashes":
            ground.ends(lease, "crashed", "bug")
        case "dies":
            ground.lost[lease] = "killed"
        case "hangs":
            ground.silent.add(lease)


def check(run) -> None:
    live = {key: status for key, status in run.ground.hosts.items() if status.phase != "ended"}
    book = {each.lease: each for device in run.controller.report().devices for each in device.slices}
    assert live.keys() <= book.keys(), "a host computes on a slice that is not booked"
    names = [status.spec.name for status in live.values()]
    assert len(set(names)) == len(names), f"a work runs twice: {names}"
    for device in run.controller.report().devices:
        assert sum(each.leased_milli for each in device.slices) <= 1_000
        assert sum(each.memory_bytes for each in device.slices) <= device.memory_bytes
    for key in book.keys() - live.keys():  # of a move that waits for its host to leave
        assert book[key].workload in names, f"{key} is leaked: {book[key]}"


@pytest.mark.timeout(120)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=events)
def test_no_slice_has_two_holders_and_none_is_leaked(make, ground, tmp_path_factory, events):
    ground.__init__()
    run = make(tmp_path_factory.mktemp("home"))
    for name in NAMES:
        ask(run, "submit", name, 300)
    for event in events:
        if event[0] == "restart":
            run = make(run.home)
        elif len(event) == 3:
            ask(run, *event)
        else:
            happen(run, *event)
        run.tick()
        for lease, status in list(run.ground.hosts.items()):
            if status.phase == "starting" and lease not in run.ground.silent:
                run.ground.runs(lease)
        check(run)
    # In the end everybody leaves, and the pool is empty.
    run.ground.silent.clear()
    for name in NAMES:
        ask(run, "cancel", name, 0)
    for _ in range(3):
        for lease in [key for key, status in run.ground.hosts.items() if status.phase != "ended"]:
            run.ground.ends(lease, "stopped")
        run.tick()
    assert run.book() == {} and run.ground.hosts == {}
