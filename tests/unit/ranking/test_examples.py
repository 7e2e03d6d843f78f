"""Every micro-step has rows, whatever number of groups an epoch has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ranking.examples import RankExamples


def test_an_epoch_with_fewer_groups_than_the_first_begins_again(synthetic, data):
    schedule = replace(synthetic.SCHEDULE, groups=2, micro=2)
    rows = data.rows(data.train, data.spec.history, schedule.group_rows)
    examples = RankExamples(data.users, data.items, rows, schedule, draws=True)
    counts = [len(rows.groups(np.random.default_rng([schedule.seed, epoch]))) for epoch in range(8)]
    fewest = int(np.argmin(counts))
    assert counts[fewest] < counts[0] == examples.steps_per_epoch
    for step in range(fewest * counts[0], (fewest + 1) * counts[0]):
        example = examples.draw(step)
        assert example.real.any() and example.candidates.shape[1] == schedule.group_rows + schedule.negatives
