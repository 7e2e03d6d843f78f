"""What each kind of work can be told; unknown names are refused."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, JsonValue

from configs.branch import Branch
from pool.engines.split_adam import PIECE_ELEMENTS


class Grouping(Branch):
    """How training is cut into units. It changes float sums, so it is fixed when a fine-tune begins.

    The defaults keep a unit near 5 ms for MovieLens-1M and the quick recipe on one slow core (see
    `serving.works.grouping.propose_grouping`, which measures).
    """

    tower_users: int | None = Field(
        default=8, ge=1, le=4_096, description="users of a two-tower's part; null: a whole step is one unit"
    )
    tower_scored: int = Field(default=8, ge=1, le=4_096, description="users of a two-tower's part scored in a unit")
    tower_items: int = Field(default=512, ge=1, le=1_048_576, description="candidate items of a two-tower unit")
    fine_groups: int | None = Field(
        default=2, ge=1, le=4_096, description="groups of rows in a fine ranker's micro-step; null: all of a step"
    )
    coarse_groups: int | None = Field(default=2, ge=1, le=4_096, description="the same of the coarse ranker")
    ranker_parts: bool = Field(
        default=True,
        description="cut a ranker's micro-step into parts, each a unit; they compute a part of the forward pass twice",
    )
    valid_groups: int = Field(default=4, ge=1, le=4_096, description="groups of validation rows in a unit")
    piece_elements: int = Field(
        default=PIECE_ELEMENTS, ge=1_024, le=1 << 30, description="weights that one unit of a move covers"
    )


WHOLE = Grouping(tower_users=None, fine_groups=None, coarse_groups=None, ranker_parts=False, valid_groups=256)
"""Steps uncut where they can be: what `serving.build.build_release` computes, bit for bit."""


class FinetuneOptions(Branch):
    """A fine-tune of everything a release holds."""

    recipe: str = Field(default="quick", description="named set of training settings")
    start_from: str | None = Field(
        default=None, max_length=100, description="release whose weights to begin with; absent: from scratch"
    )
    epochs: int | None = Field(default=None, ge=1, le=1_000, description="of every model; absent: the recipe's")
    most_rows: int | None = Field(
        default=None, ge=1, description="newest interactions that models train on; absent: the recipe's"
    )
    recompute: bool = Field(
        default=False,
        description="less activation memory for more time, same bits; units that are parts of a step do so anyway",
    )
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    threads: int = Field(
        default=1, ge=1, le=256, description="cores it computes on; kept when it moves, as it changes float sums"
    )
    grouping: Grouping = Grouping()


class WarmupOptions(Branch):
    """A warm-up of one release."""

    version: str | None = Field(default=None, max_length=100, description="release; absent: the champion")
    requests: tuple[dict[str, JsonValue], ...] = Field(
        default=(),
        max_length=100_000,
        description="bodies of recommendation requests to replay, such as recorded ones; absent: some of the users",
    )
    batch_sizes: tuple[Annotated[int, Field(ge=1, le=4_096)], ...] = Field(
        default=(1, 8, 32),
        min_length=1,
        max_length=64,
        description="rows in a batch, which is one unit: guaranteed work on the device waits for its end",
    )
    runs: int = Field(default=5, ge=2, le=10_000, description="batches of each size; the first is not timed")
    stand: bool = Field(
        default=False,
        description="stay when all is answered, with everything loaded and no share of the device, until cancelled",
    )
    reference: tuple[tuple[str, ...], ...] | None = Field(
        default=None,
        description="the item ids that each request must get, of the serving release when the version is the same; "
        "absent: answers are only checked for sense",
    )


class EvaluateOptions(Branch):
    """Offline metrics of releases on held-out events, and their comparison."""

    versions: tuple[str, ...] = Field(
        default=(), max_length=8, description="releases; absent: the workload's version, or the champion"
    )
    users: int = Field(default=500, ge=1, le=1_000_000, description="users with held-out events that are asked for")
    most_rows: int = Field(default=50_000, ge=1, description="newest held-out events that rankers score")
    k: int = Field(default=10, ge=1, le=500, description="items in an answer")
    batch: int = Field(default=1, ge=1, le=4_096, description="users of a unit")
    seed: int = Field(default=0, ge=0, le=2**31 - 1, description="of the choice of users")
