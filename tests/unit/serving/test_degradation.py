from serving.degradation import FEWEST_CANDIDATES, StageCosts


def costs(ms: float) -> StageCosts:
    learnt = StageCosts()
    learnt.observe("fine", 100, ms)
    return learnt


def test_a_stage_never_seen_runs_while_time_is_left():
    assert StageCosts().affordable("fine", 100, 1, 0.5) == 100
    assert StageCosts().affordable("fine", 100, 1, 0.0) == 0


def test_too_little_time_first_shrinks_the_candidates_then_skips_the_stage():
    assert costs(10).affordable("fine", 100, 1, 12) == 100
    assert costs(10).affordable("fine", 100, 1, 5) == 50
    assert costs(10).affordable("fine", 100, 1, 10 * (FEWEST_CANDIDATES - 1) / 100) == 0


def test_time_is_expected_by_the_work_asked_for():
    learnt = costs(10)
    assert learnt.affordable("fine", 1_000, 1, 50) == 500
    assert costs(10).affordable("fine", 100, 10, 50) == 50
    learnt.observe("fine", 1_000, 100)
    assert learnt.affordable("fine", 100, 1, 11) == 100


def test_one_slow_call_does_not_switch_a_stage_off_for_good():
    learnt = costs(1_000)
    tries = next(n for n in range(200) if learnt.affordable("fine", 100, 1, 20))
    assert 0 < tries < 60
