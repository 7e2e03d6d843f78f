"""How rankers are trained: the numbers of one run, and the named recipes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from configs.errors import ConfigError
from ranking.coarse import CoarseConfig
from ranking.fine import FineConfig


@dataclass(frozen=True)
class Schedule:
    """One training run.

    ``groups`` groups of up to ``group_rows`` rows make an optimiser step, cut into ``micro`` steps.
    ``warmup_steps`` are at most a tenth of the run's.
    ``average`` is the decay of the weight average that is kept; ``negatives`` are drawn per group.
    ``context_dropout`` is the share of rows that train without their context, so that a request
    without one meets trained weights.
    ``patience`` is how many epochs without a better validation AUC end the run.
    """

    epochs: int
    learning_rate: float = 2e-3
    warmup_steps: int = 100
    embedding_decay: float = 1e-5
    id_dropout: float = 0.02
    context_dropout: float = 0.1
    average: float = 0.99
    group_rows: int = 16
    groups: int = 128
    micro: int = 1
    negatives: int = 24
    patience: int = 2
    distil_weight: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class LossWeights:
    """Weight of each objective's loss while training; the rating's is a mean square in standard deviations."""

    like: float = 1.0
    rating: float = 0.5
    engage: float = 0.5


@dataclass(frozen=True)
class Recipe:
    """A fine ranker, and a coarse one distilled from it.

    ``history``: most events a training row sees. ``rows``: most rows to train on, the newest; None: all.
    """

    name: str
    fine: Schedule
    coarse: Schedule
    fine_model: FineConfig = field(default_factory=FineConfig)
    coarse_model: CoarseConfig = field(default_factory=CoarseConfig)
    weights: LossWeights = LossWeights()
    history: int = 100
    rows: int | None = None
    like_at: float = 4.0

    def with_objectives(self, *names: str) -> Recipe:
        """The same recipe for these objectives."""
        models = (replace(model, objectives=names) for model in (self.fine_model, self.coarse_model))
        return replace(self, **dict(zip(("fine_model", "coarse_model"), models, strict=True)))


# Tuned on the validation rows of MovieLens-1M. Most of the gain of the full recipe over a plain DCNv2
# comes from the length of the history and from wider tables held down by weight decay.
QUICK = Recipe(
    name="quick",
    fine=Schedule(epochs=1, learning_rate=5e-3, groups=32, negatives=8),
    coarse=Schedule(epochs=1, learning_rate=5e-3, groups=32, negatives=8, distil_weight=1.0),
    fine_model=FineConfig(hidden=(64, 32)),
    coarse_model=CoarseConfig(dim=16, hidden=64),
    history=50,
    rows=200_000,
)
FULL = Recipe(
    name="full",
    fine=Schedule(epochs=5, learning_rate=3e-3, embedding_decay=3e-5),
    coarse=Schedule(epochs=4, learning_rate=3e-3, embedding_decay=3e-5, negatives=16, distil_weight=1.0),
    fine_model=FineConfig(dim=32, attention=64),
    history=200,
)
RECIPES = {recipe.name: recipe for recipe in (QUICK, FULL)}


def recipe_named(name: str) -> Recipe:
    """Raises ConfigError for an unknown name; lists the known ones."""
    if name not in RECIPES:
        raise ConfigError(f"no recipe {name!r}; known: {sorted(RECIPES)}")
    return RECIPES[name]
