"""Properties of the planner over drawn pools; `World` checks its own book after every decision."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule, run_state_machine_as_test

from pool.policy.decisions import Grant, Migrate, Park, Preempt, PromoteShadow, Release, Requeue, Resume, SetShares
from pool.policy.observation import PlannerState
from pool.policy.planner import tick
from pool.workload import RANK

KINDS = ["inference", "warmup", "finetune"]
DEVICES = st.lists(
    st.tuples(st.sampled_from(["cpu", "gpu"]), st.integers(0, 4), st.integers(1, 3)), min_size=1, max_size=5
)
TENANTS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(50, 600), st.integers(0, 2), st.integers(0, 4), st.booleans()),
    max_size=10,
)
QUEUED = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(50, 900), st.integers(0, 3), st.integers(1, 3), st.booleans()),
    max_size=6,
)


def pool_of(world, devices, tenants, queued):
    """Tenants run where they fit, one after the other; the others wait. Memory is in bytes, a few of them."""
    pool = world()
    for number, (kind, memory, node) in enumerate(devices):
        pool.device(f"d{number}", kind, memory, f"n{node}")
    for number, (kind, milli, memory, place, both) in enumerate(tenants):
        device = f"d{place % len(devices)}"
        free_milli, free_bytes = free(pool, device)
        if milli <= free_milli and memory <= free_bytes:
            tier = (devices[place % len(devices)][0], *(("cpu", "gpu") if both else ()))
            pool.running(f"t{number}", device, kind, milli, memory_bytes=memory, tier=tuple(dict.fromkeys(tier)))
    for number, (kind, milli, memory, replicas, both) in enumerate(queued):
        tier = ("gpu", "cpu") if both else ("cpu",)
        about = {"memory_bytes": memory, "replicas": replicas, "tier": tier}
        pool.workload(f"q{number}", kind, milli, age_s=number % 3, **about)
    return pool


def free(pool, device, without=()):
    """Share and memory of a device that nobody holds, but for the leases of these ranks."""
    held = [lease for lease in pool.leases.values() if lease.device == device]
    held = [lease for lease in held if pool.spec(lease.workload).rank not in without]
    whole = pool.devices[device].device.memory_bytes
    return 1000 - sum(lease.milli for lease in held), whole - sum(lease.memory_bytes for lease in held)


def fits_somewhere(pool, spec, without=()) -> bool:
    """Whether some live device could take a workload if nobody of these ranks were there."""
    for name, view in pool.devices.items():
        free_milli, free_bytes = free(pool, name, without)
        takes = view.health == "alive" and view.device.kind in spec.tier
        if takes and spec.min_milli <= free_milli and spec.memory_bytes <= free_bytes:
            return True
    return False


@given(devices=DEVICES, tenants=TENANTS, queued=QUEUED)
def test_no_device_is_promised_twice_and_the_pool_comes_to_rest(world, devices, tenants, queued):
    pool = pool_of(world, devices, tenants, queued)
    pool.settle()
    assert pool.decide() == () and pool.decide() == ()


@given(devices=DEVICES, tenants=TENANTS, queued=QUEUED)
def test_the_same_input_gives_the_same_output_and_the_input_stays_as_it_was(world, devices, tenants, queued):
    pool = pool_of(world, devices, tenants, queued)
    seen, again = pool.observe(), pool.observe()
    first = tick(seen, PlannerState(), pool.now_s, pool.settings)
    assert tick(seen, PlannerState(), pool.now_s, pool.settings) == first
    assert seen == again


@given(devices=DEVICES, tenants=TENANTS, queued=QUEUED, shuffled=st.randoms())
def test_the_order_in_which_things_are_seen_does_not_matter(world, devices, tenants, queued, shuffled):
    pool = pool_of(world, devices, tenants, queued)
    expected = pool.decide()
    for part in (pool.devices, pool.workloads, pool.leases):
        items = list(part.items())
        shuffled.shuffle(items)
        part.clear()
        part.update(items)
    pool.state = PlannerState()
    assert set(pool.decide()) == set(expected)


@given(
    devices=DEVICES,
    tenants=TENANTS,
    newcomer=st.tuples(st.sampled_from(KINDS), st.integers(50, 1000), st.integers(0, 3)),
)
def test_a_newcomer_disturbs_nobody_in_vain_and_nobody_above_what_it_needs(world, devices, tenants, newcomer):
    pool = pool_of(world, devices, tenants, [])
    kind, milli, memory = newcomer
    pool.workload("new", kind, milli, memory_bytes=memory, tier=("cpu", "gpu"))
    spec = pool.spec("new")
    lower = [rank for rank in RANK if RANK[rank] > RANK[spec.rank]]
    at_once, gently = fits_somewhere(pool, spec), fits_somewhere(pool, spec, ["best_effort"] if lower else [])
    by_force = fits_somewhere(pool, spec, lower)
    decisions = pool.step()
    disturbed = [each for each in decisions if isinstance(each, Preempt | Migrate)]
    granted = [each for each in decisions if isinstance(each, Grant)]
    assert bool(granted) == by_force
    assert not (at_once and disturbed)
    assert all(pool.spec(each.workload).rank in lower for each in disturbed)
    if gently:
        assert all(pool.spec(each.workload).rank == "best_effort" for each in disturbed)
    assert not [each for each in decisions if isinstance(each, Release | Requeue | Park | PromoteShadow)]


@given(devices=DEVICES, tenants=TENANTS, dead=st.sets(st.integers(0, 4), min_size=1))
def test_every_lease_of_a_dead_device_is_accounted_for_and_guaranteed_work_comes_back(world, devices, tenants, dead):
    pool = pool_of(world, devices, tenants, [])
    gone = {f"d{number}" for number in dead if f"d{number}" in pool.devices}
    lost = {lease.id: lease.workload for lease in pool.leases.values() if lease.device in gone}
    for device in gone:
        pool.set_health(device, "dead")
    decisions = pool.step()
    ended = [each for each in decisions if isinstance(each, Release | Requeue)]
    assert {each.lease: each.workload for each in ended} == lost
    for each in ended:
        interruptible = RANK[pool.spec(each.workload).rank] > 0
        assert isinstance(each, Requeue) == interruptible
    held = {lease.workload for lease in pool.leases.values()}
    for name in lost.values():
        if pool.spec(name).rank == "guaranteed" and name not in held:
            assert not fits_somewhere(pool, pool.spec(name), ["burstable", "best_effort"])
    pool.settle()


@given(devices=DEVICES, tenants=TENANTS, queued=QUEUED)
def test_what_waits_has_a_reason_and_fits_nowhere(world, devices, tenants, queued):
    pool = pool_of(world, devices, tenants, queued)
    pool.settle()
    for name, about in pool.workloads.items():
        held = sum(lease.workload == name for lease in pool.leases.values())
        if held < about.state.spec.replicas:
            assert pool.state.waiting[name]
            assert name in pool.state.setbacks or not fits_somewhere(pool, about.state.spec)


class Pool(RuleBasedStateMachine):
    """A pool that lives: work comes, ends, crashes and misses its SLO, devices come, die and drain."""

    work, machines = Bundle("work"), Bundle("machines")
    world = None

    def __init__(self):
        super().__init__()
        assert Pool.world is not None
        self.pool = Pool.world()
        self.count = 0

    @rule(target=machines, kind=st.sampled_from(["cpu", "gpu"]), memory=st.integers(0, 4), node=st.integers(0, 2))
    def add_device(self, kind, memory, node):
        self.count += 1
        self.pool.device(f"d{self.count}", kind, memory, f"n{node}")
        return f"d{self.count}"

    @rule(
        target=work,
        kind=st.sampled_from(KINDS),
        milli=st.integers(1, 1000),
        more=st.integers(0, 300),
        memory=st.integers(0, 3),
        replicas=st.integers(1, 3),
        slo_ms=st.sampled_from([None, 10]),
        tier=st.sampled_from([("cpu",), ("gpu",), ("gpu", "cpu")]),
    )
    def submit(self, kind, milli, more, memory, replicas, slo_ms, tier):
        self.count += 1
        about = {"memory_bytes": memory, "replicas": replicas, "slo_ms": slo_ms, "tier": tier}
        self.pool.workload(f"w{self.count}", kind, milli, desired_milli=min(1000, milli + more), **about)
        return f"w{self.count}"

    @rule(name=work, phase=st.sampled_from(["succeeded", "failed", "cancelled"]))
    def end(self, name, phase):
        self.pool.set_phase(name, phase)

    @rule(name=consumes(work))
    def crash_again_and_again(self, name):
        about = self.pool.workloads[name]
        for lease in [each.id for each in self.pool.leases.values() if each.workload == name]:
            del self.pool.leases[lease], self.pool.metrics[lease]
        self.pool.workloads[name] = type(about)(about.state, about.queued_s, (self.pool.now_s,) * 9)

    @rule(name=work, p99_ms=st.sampled_from([None, 1, 7, 50]), wants=st.booleans())
    def load(self, name, p99_ms, wants):
        self.pool.set_metrics(name, p99_ms=p99_ms, wants=wants)

    @rule(name=machines, health=st.sampled_from(["alive", "suspect", "draining", "dead"]))
    def change_health(self, name, health):
        self.pool.set_health(name, health)

    @rule(name=work, device=machines, milli=st.integers(0, 100), ready=st.booleans())
    def warm_a_copy(self, name, device, milli, ready):
        free_milli, free_bytes = free(self.pool, device)
        spec = self.pool.spec(name)
        alive = self.pool.devices[device].health == "alive" and self.pool.devices[device].device.kind in spec.tier
        if alive and milli <= free_milli and spec.memory_bytes <= free_bytes and spec.rank == "guaranteed":
            self.pool.lease(name, device, milli=milli, shadow=True, ready=ready)

    @rule(seconds=st.sampled_from([0, 0.05, 1, 4, 60]))
    def step(self, seconds):
        self.pool.step(seconds)

    @rule()
    def rest(self):
        """With nothing new, and no time passing, decisions end."""
        self.pool.settle(most=5)

    @invariant()
    def book_is_sound(self):
        self.pool.check()
        remembered = {lease for device in self.pool.state.shares.values() for lease in device.claims}
        assert not {lease for lease in remembered if lease.startswith("new")}


def test_a_living_pool_is_never_promised_twice_and_always_comes_to_rest(world):
    Pool.world = world
    run_state_machine_as_test(Pool, settings=settings(stateful_step_count=40, deadline=None))


@given(devices=DEVICES, tenants=TENANTS, p99_ms=st.lists(st.sampled_from([None, 5, 9.5, 30]), min_size=10, max_size=10))
def test_under_a_constant_load_the_pool_comes_to_rest_however_bad_it_is(world, devices, tenants, p99_ms):
    pool = pool_of(world, devices, [], [])
    for number, ((kind, milli, memory, place, both), late_ms) in enumerate(zip(tenants, p99_ms, strict=False)):
        device = f"d{place % len(devices)}"
        free_milli, free_bytes = free(pool, device)
        if milli <= free_milli and memory <= free_bytes:
            tier = ("cpu", "gpu") if both else (devices[place % len(devices)][0],)
            about = {"memory_bytes": memory, "slo_ms": 10, "desired_milli": 1000, "tier": tier}
            pool.running(f"t{number}", device, kind, milli, **about)
            pool.set_metrics(f"t{number}", p99_ms=late_ms, wants=True)
    for _ in range(60):
        pool.step(30)
    assert not [each for _ in range(20) for each in pool.step(30) if not isinstance(each, SetShares | Resume)]
