"""The parts of a fine-tune: each is done in units and can say and take over where it stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from configs.errors import ArtifactError
from pool.work import Progress
from serving.works.saved import Saved

Tensors = dict[str, Any]


class Part(Protocol):
    """A part that was not begun has no state; one that takes a state over begins with it."""

    @property
    def doing(self) -> str: ...

    @property
    def total(self) -> int:
        """Units in all; an estimate until the part has begun."""
        ...

    @property
    def count(self) -> int:
        """Units done."""
        ...

    @property
    def done(self) -> bool: ...

    @property
    def figures(self) -> Mapping[str, float]: ...

    def unit(self) -> None: ...

    def state(self) -> Tensors | None: ...

    def resume(self, state: Tensors) -> None:
        """Take a state over, before the first unit."""
        ...

    def skip(self, total: int) -> None:
        """Done by an earlier process, in so many units."""
        ...


class Tasks:
    """A part that is a row of calls; its state is how many are done.

    Args:
        tasks: what each is called, and does.
    """

    def __init__(self, tasks: Sequence[tuple[str, Callable[[], None]]]):
        self._tasks, self.count = tasks, 0
        self.figures: Mapping[str, float] = {}

    @property
    def doing(self) -> str:
        return "done" if self.done else self._tasks[self.count][0]

    @property
    def total(self) -> int:
        return len(self._tasks)

    @property
    def done(self) -> bool:
        return self.count == len(self._tasks)

    def unit(self) -> None:
        self._tasks[self.count][1]()
        self.count += 1

    def state(self) -> Tensors:
        return {"count": self.count}

    def resume(self, state: Tensors) -> None:
        self.count = state["count"]

    def skip(self, total: int) -> None:
        self.count = self.total


class PartList:
    """Parts one after the other, of which the first, reading, is what every process does for itself.

    Args:
        take_over: given a checkpoint once everything is read, before its part is gone on with.
    """

    def __init__(self, reading: Tasks, parts: Sequence[Part], take_over: Callable[[Saved], None]):
        self.reading = reading
        self._parts: list[Part] = [reading, *parts]
        self._take_over, self._place = take_over, 0
        self._resumed_done = 0
        self.resumed: Saved | None = None

    @property
    def done(self) -> bool:
        return self._place == len(self._parts)

    def step(self, units: int) -> int:
        for done in range(units):
            if self.done:
                return done
            self._unit()
        return units

    def progress(self) -> Progress:
        """Its total is 0 while reading: how much there is to do is not known before."""
        if not self._place:
            return Progress(self._parts[0].count, 0, self._parts[0].doing)
        totals = [part.total for part in self._parts]
        if self.done:
            return Progress(sum(totals), sum(totals), "done")
        part = self._parts[self._place]
        figures = {name: float(value) for name, value in part.figures.items() if np.isfinite(value)}
        done = max(self._resumed_done, sum(totals[: self._place]) + part.count)  # a part counts once it is set up
        return Progress(done, max(done, sum(totals)), part.doing, figures)

    def position(self) -> dict[str, Any]:
        """Plain values that `resume` finds in a checkpoint; ``done`` units are for whoever else reads it."""
        place = max(1, self._place)
        return {
            "place": place, "totals": [part.total for part in self._parts[1:place]], "done": self.progress().done
        }  # fmt: skip

    def state(self) -> Tensors | None:
        """Of the part at `position`."""
        place = max(1, self._place)
        return self._parts[place].state() if place < len(self._parts) else None

    def resume(self, saved: Saved) -> None:
        """Go on from a checkpoint with `position` among its values and `state` as its tensors' ``part``.

        Raises ArtifactError when a unit was done already: what was read for it would be mixed with the old state.
        """
        if self._place or self._parts[0].count:
            raise ArtifactError("a checkpoint can be restored only into a work that has not begun; make a new one")
        self.resumed = saved

    def _unit(self) -> None:
        self._parts[self._place].unit()
        if not self._place and self._parts[0].done and self.resumed is not None:
            self._jump(self.resumed)
            self.resumed = None
        while not self.done and self._parts[self._place].done:
            self._place += 1

    def _jump(self, saved: Saved) -> None:
        self._take_over(saved)
        for part, total in zip(self._parts[1:], saved.values["totals"], strict=False):
            part.skip(total)
        self._place, self._resumed_done = saved.values["place"], saved.values["done"]
        if not self.done and saved.tensors["part"] is not None:
            self._parts[self._place].resume(saved.tensors["part"])


class Units(Protocol):
    """What `recall.tower_units.TowerUnits` and `ranking.pipeline.RankerFit` have in common."""

    @property
    def total_units(self) -> int: ...
    @property
    def unit_count(self) -> int: ...
    @property
    def done(self) -> bool: ...
    def unit(self) -> None: ...
    def state_dict(self) -> Tensors: ...
    def load_state_dict(self, state: Tensors) -> None: ...


class TrainingPart:
    """A model's training: it is set up in its first unit, and the next ones train.

    Args:
        begin: makes the trainer; told whether its weights come from a checkpoint.
        estimate: units, as long as there is no trainer.
        watch: figures of a trainer.
        end: told once when training is over.
    """

    def __init__(
        self,
        doing: str,
        begin: Callable[[bool], Units],
        estimate: Callable[[], int],
        watch: Callable[[Any], Mapping[str, float]],
        end: Callable[[], None],
    ):
        self.doing, self.done = doing, False
        self._begin, self._estimate, self._watch, self._end = begin, estimate, watch, end
        self._run: Units | None = None
        self._resumed: Tensors | None = None
        self._skipped: int | None = None

    @property
    def total(self) -> int:
        if self._skipped is not None:
            return self._skipped
        return 1 + (self._estimate() if self._run is None else self._run.total_units)

    @property
    def count(self) -> int:
        return 0 if self._run is None else 1 + self._run.unit_count

    @property
    def figures(self) -> Mapping[str, float]:
        return {} if self._run is None else self._watch(self._run)

    def unit(self) -> None:
        if self._run is None:
            self._run = self._begin(self._resumed is not None)
            if self._resumed is not None:
                self._run.load_state_dict(self._resumed)
                self._resumed = None
        else:
            self._run.unit()
        if self._run.done:
            self._end()
            self.done = True

    def state(self) -> Tensors | None:
        return self._resumed if self._run is None else self._run.state_dict()

    def resume(self, state: Tensors) -> None:
        self._resumed = state

    def skip(self, total: int) -> None:
        self._skipped, self.done = total, True
