from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.pool_settings import ShareSettings
from pool.policy.shares import DeviceShares, SliceView, allot, share_device, share_out

SETTINGS = ShareSettings(
    grow_above=0.9,
    shrink_below=0.5,
    step_milli=100,
    grow_dwell_s=1,
    shrink_dwell_s=10,
    idle_after_s=2,
    least_change_milli=20,
)


def online(p99_ms=7.0, weight=300, least=300, wanted=800, name="online", slo_ms=10.0) -> SliceView:
    return SliceView(name, name, "guaranteed", least, wanted, weight, p99_ms=p99_ms, slo_ms=slo_ms)


def trainer(weight=100, least=100, wanted=1000, name="trainer", wants=True) -> SliceView:
    return SliceView(name, name, "best_effort", least, wanted, weight, wants=wants)


class Device:
    """Slices over time; weights that are decided are applied."""

    def __init__(self, *slices: SliceView):
        self.slices = {each.lease: each for each in slices}
        self.state = DeviceShares()
        self.now_s = 0.0
        self.short = ()

    def after(self, seconds: float):
        self.now_s += seconds
        decided, self.state = share_device(list(self.slices.values()), self.state, self.now_s, SETTINGS)
        self.short = decided.short
        for lease, weight in decided.weights or ():
            self.slices[lease] = self.slices[lease]._replace(weight_milli=weight)
        return decided

    def sees(self, lease: str, **changed):
        self.slices[lease] = self.slices[lease]._replace(**changed)

    def weights(self) -> dict[str, int]:
        return {lease: each.weight_milli for lease, each in self.slices.items()}


# Dividing


def test_units_are_divided_by_weight():
    assert share_out(100, [30, 40, 30], [1000] * 3) == [30, 40, 30]
    assert share_out(10, [1, 1, 1], [100] * 3) in ([4, 3, 3], [3, 4, 3], [3, 3, 4])


def test_what_a_full_one_leaves_goes_to_the_others():
    assert share_out(100, [1, 1, 2], [10, 100, 100]) == [10, 30, 60]
    assert share_out(100, [1, 1], [10, 20]) == [10, 20]
    assert share_out(0, [1], [5]) == [0]
    assert share_out(7, [], []) == []


def water_level(amount, weights, caps) -> list[float]:
    """Max-min fairness by bisection on the level to which all are filled."""
    low, high = 0.0, float(sum(caps) + 1)
    for _ in range(200):
        level = (low + high) / 2
        total = sum(min(cap, level * weight) for weight, cap in zip(weights, caps, strict=True))
        low, high = (level, high) if total < amount else (low, level)
    return [min(cap, high * weight) for weight, cap in zip(weights, caps, strict=True)]


@given(
    amount=st.integers(0, 1000),
    drawn=st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 1000)), min_size=1, max_size=8),
)
def test_a_division_is_max_min_fair_to_a_unit_for_each(amount, drawn):
    weights, caps = [weight for weight, _ in drawn], [cap for _, cap in drawn]
    found = share_out(amount, weights, caps)
    assert sum(found) == min(amount, sum(caps))
    assert all(0 <= share <= cap for share, cap in zip(found, caps, strict=True))
    for share, fair in zip(found, water_level(amount, weights, caps), strict=True):
        assert abs(share - fair) <= len(drawn)


@given(
    data=st.data(),
    leases=st.lists(st.integers(1, 200), min_size=1, max_size=5),
)
def test_weights_keep_every_lease_and_never_exceed_the_device(data, leases):
    slices, claims = [], {}
    for number, least in enumerate(leases):
        slo_ms = data.draw(st.sampled_from([None, 10.0]))
        rank = data.draw(st.sampled_from(["guaranteed", "burstable", "best_effort"]))
        name = f"s{number}"
        slices.append(SliceView(name, name, rank, least, 1000, data.draw(st.integers(0, 1000)), slo_ms=slo_ms))
        claims[name] = data.draw(st.integers(least, 1000))
    weights = allot(slices, claims)
    assert sum(weights.values()) <= 1000
    assert all(each.min_milli <= weights[each.lease] <= claims[each.lease] for each in slices)
    unmet = sum(claims[each.lease] - weights[each.lease] for each in slices)
    assert sum(weights.values()) == 1000 or unmet == 0


# Feedback


def test_idle_share_goes_to_those_who_want_it_in_proportion_to_their_leases():
    device = Device(
        online(weight=400, least=400), trainer(least=100, name="a"), trainer(least=200, name="b", weight=200)
    )
    decided = device.after(0)
    assert device.weights() == {"online": 400, "a": 200, "b": 400}
    assert "a 100 to 200: wants more" in decided.reason


def test_a_share_grows_while_the_slo_is_close_and_the_rest_gives_way():
    device = Device(online(p99_ms=9.5), trainer())
    device.after(0)
    seen = [device.weights()["online"]]
    for _ in range(6):
        device.after(1)
        seen.append(device.weights()["online"])
    assert seen == [300, 400, 500, 600, 700, 800, 800]
    assert device.weights()["trainer"] == 200


def test_between_the_two_thresholds_nothing_moves():
    device = Device(online(p99_ms=7.0, weight=500), trainer(weight=500))
    assert all(device.after(seconds).weights is None for seconds in (0, 1, 100, 1000))


def test_it_shrinks_slowly_and_never_below_its_lease():
    device = Device(online(p99_ms=1.0, weight=500), trainer(weight=500))
    device.after(0)
    seen = []
    for _ in range(7):
        device.after(10)
        seen.append(device.weights()["online"])
    assert seen == [450, 400, 350, 300, 300, 300, 300]
    assert device.weights()["trainer"] == 700


def test_it_does_not_shrink_below_what_it_uses():
    device = Device(online(p99_ms=1.0, weight=500)._replace(metered_milli=430), trainer(weight=500))
    device.after(0)
    seen = []
    for _ in range(4):
        device.after(10)
        seen.append(device.weights()["online"])
    assert seen == [450, 430, 430, 430]


def test_growth_dwells_between_two_steps():
    device = Device(online(p99_ms=20.0), trainer())
    device.after(0)
    for _ in range(9):
        device.after(0.1)
    assert device.weights()["online"] == 300
    device.after(0.11)
    assert device.weights()["online"] == 400


def test_load_that_swings_around_one_threshold_does_not_make_shares_swing():
    device = Device(online(p99_ms=9.5), trainer())
    device.after(0)
    device.after(1)
    for p99_ms in (8.5, 8.9, 8.8, 6.0, 5.1, 8.9) * 20:
        device.sees("online", p99_ms=p99_ms)
        device.after(1)
        assert device.weights()["online"] == 400


def test_a_want_is_not_forgotten_at_once():
    device = Device(trainer(name="a", weight=500), trainer(name="b", weight=500))
    device.after(0)
    device.sees("a", wants=False)
    assert device.after(1.9).weights is None
    assert device.after(0.2).weights == (("a", 100), ("b", 900))
    device.sees("a", wants=True)
    assert device.after(0.1).weights == (("a", 500), ("b", 500))


def test_the_slo_of_guaranteed_work_goes_before_that_of_burstable():
    warm = SliceView("warm", "warm", "burstable", 100, 900, 500, p99_ms=50, slo_ms=10)
    device = Device(online(p99_ms=50, weight=500, wanted=900), warm)
    for _ in range(20):
        device.after(1)
    assert device.weights() == {"online": 900, "warm": 100}


def test_a_device_is_short_when_the_slo_is_missed_with_all_there_is():
    device = Device(online(p99_ms=20.0, weight=300, wanted=500), trainer())
    device.after(0)
    assert device.short == ()
    for _ in range(3):
        device.after(1)
    assert device.short == ("online",)
    device.sees("online", p99_ms=9.5)
    device.after(1)
    assert device.short == ()


def test_a_newcomer_is_given_its_lease_at_once():
    device = Device(trainer(weight=1000))
    assert device.after(0).weights is None
    device.slices["online"] = online(weight=0)
    device.after(0.01)
    assert device.weights() == {"trainer": 700, "online": 300}


def test_a_change_that_is_not_worth_it_is_not_written():
    device = Device(online(weight=300), trainer(weight=690))
    assert device.after(0).weights is None


def test_weights_that_exceed_the_device_are_put_right_however_little():
    device = Device(online(weight=310, least=310), trainer(weight=695))
    device.after(0)
    assert device.weights() == {"online": 310, "trainer": 690}


@pytest.mark.parametrize("wants", [True, False])
def test_an_empty_or_a_single_slice(wants):
    assert share_device([], DeviceShares(), 0, SETTINGS)[0].weights is None
    device = Device(trainer(weight=100, wants=wants))
    device.after(0)
    device.after(5)
    assert device.weights()["trainer"] == (1000 if wants else 100)


@given(data=st.data(), leases=st.lists(st.integers(1, 250), min_size=1, max_size=4))
def test_under_a_constant_load_shares_come_to_rest(data, leases):
    drawn = []
    for number, least in enumerate(leases):
        name, wanted = f"s{number}", data.draw(st.integers(least, 1000))
        slo_ms, p99_ms = data.draw(st.sampled_from([None, 10.0])), data.draw(st.sampled_from([None, 1.0, 7.0, 30.0]))
        rank = data.draw(st.sampled_from(["guaranteed", "burstable", "best_effort"]))
        weight, wants = data.draw(st.integers(0, 1000)), data.draw(st.booleans())
        drawn.append(SliceView(name, name, rank, least, wanted, weight, 0, wants, p99_ms, slo_ms))
    device = Device(*drawn)
    for _ in range(40):
        device.after(11)
        assert sum(device.weights().values()) <= 1000
    assert all(device.after(11).weights is None for _ in range(5))
