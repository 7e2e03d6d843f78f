"""Loops over arrays, compiled to machine code.

A batch of one user costs numpy some hundred calls of a few microseconds each; the same loops compiled are
one call. Signatures are given, so that a module compiles as it is imported (afterwards from a cache on
disk, beside the module or in the user's cache folder) and never while a request waits. The cache looks at
the module's own file only, so a compiled function calls no compiled function of another module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

BOOLS, ITEMS = "Array(boolean, 2, 'C', True)", "Array(int32, 2, 'C', True)"
"""Types of what is only read: also arrays mapped from a file are accepted."""


def compiled(signature: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a function of arrays and numbers; it runs without the interpreter's lock.

    Args:
        signature: numba's, as ``"float32[:](int32[:, ::1], int64)"``; other types are refused at the call.
    """
    return njit(signature, nogil=True, cache=True, error_model="numpy")
