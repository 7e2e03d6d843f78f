"""torch's generator under a seed for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draws on the CPU follow from the seed inside, and are outside as if there had been none inside."""
    with torch.random.fork_rng(devices=[]):
        # Not `torch.manual_seed`: without a GPU it keeps a note, with a stack trace, for each of its kinds.
        torch.default_generator.manual_seed(seed)
        yield


def seed_of(*words: int) -> int:
    """63 bits that differ for different words."""
    high, low = np.random.SeedSequence(words).generate_state(2)
    return int(high) << 31 | int(low) >> 1
