"""Which FAISS index suits a catalogue."""

from __future__ import annotations

import re
from dataclasses import dataclass

from configs.errors import ConfigError

EXACT_BELOW = 20_000
"""Items up to which every vector is scanned exactly; a judgement, not measured."""


@dataclass(frozen=True)
class IndexSpec:
    """A FAISS factory string and how to search it.

    ``nprobe`` is the number of lists visited first (a flat index ignores it). ``refine`` of 0 trusts
    the quantised scores; r >= 1 fetches r * k items and orders them by their float vectors.
    """

    factory: str
    nprobe: int = 1
    refine: float = 0.0

    def __post_init__(self) -> None:
        if self.nprobe < 1:
            raise ConfigError(f"nprobe is {self.nprobe}; it must be at least 1")
        if self.refine and self.refine < 1:
            raise ConfigError(f"refine is {self.refine}; it must be 0 (off) or at least 1")

    @classmethod
    def choose(
        cls,
        items: int,
        dim: int,
        *,
        factory: str | None = None,
        nlist: int | None = None,
        nprobe: int | None = None,
        refine: float | None = None,
    ) -> IndexSpec:
        """The spec for a catalogue of `items` vectors of `dim` dimensions; each part may be overridden.

        Flat up to `EXACT_BELOW`. Above it IVF with 4-bit product quantisation scanned in registers,
        about 2 * sqrt(items) lists and 1 in 20 of them visited: see the sweep of `benchmarks.ann`
        at 1M x 64.
        """
        lists = nlist or max(1, min(65_536, round(2 * items**0.5)))
        if factory is None:
            flat = items <= EXACT_BELOW and nlist is None
            factory = "Flat" if flat else f"IVF{lists},{_quantiser(dim)}"
        elif nlist is not None:
            factory = re.sub(r"IVF\d+", f"IVF{nlist}", factory)
        found = re.search(r"IVF(\d+)", factory)
        lists = int(found.group(1)) if found else 1
        return cls(factory, nprobe or max(1, lists // 20), refine or 0.0)


def _quantiser(dim: int) -> str:
    """One 4-bit code a dimension when there are up to 64, else one for every two."""
    parts = dim if dim <= 64 else dim // 2 if dim % 2 == 0 else dim
    return f"PQ{parts}x4fs"
