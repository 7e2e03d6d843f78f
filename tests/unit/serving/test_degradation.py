from serving.degradation import FEWEST_CANDIDATES, StageCosts


def costs(ms: float) -> StageCosts:
    learnt = StageCosts()
    learnt.observe("fine", ms)
    return learnt


def test_a_stage_never_seen_runs_while_time_is_left():
    assert StageCosts().affordable("fine", 100, 0.5) == 100
    assert StageCosts().affordable("fine", 100, 0.0) == 0


def test_too_little_time_first_shrinks_the_candidates_then_skips_the_stage():
    assert costs(10).affordable("fine", 100, 12) == 100
    assert costs(10).affordable("fine", 100, 5) == 50
    assert costs(10).affordable("fine", 100, 10 * (FEWEST_CANDIDATES - 1) / 100) == 0


def test_one_slow_call_does_not_switch_a_stage_off_for_good():
    learnt = costs(1_000)
    tries = next(n for n in range(200) if learnt.affordable("fine", 100, 20))
    assert 0 < tries < 60
