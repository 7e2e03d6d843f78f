"""How urgent a request is to its caller, stated in a header; who is served first, and who gives up quality last."""

from __future__ import annotations

from enum import StrEnum

HEADER = "X-Priority"


class Priority(StrEnum):
    """Highest first; under overload a class waits for those above it and never for those below."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"

    @property
    def and_above(self) -> tuple[Priority, ...]:
        """The classes served no later than this one, itself included."""
        return _AND_ABOVE[self]


_AND_ABOVE = {priority: tuple(Priority)[: place + 1] for place, priority in enumerate(Priority)}
