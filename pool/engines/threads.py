"""How many cores the numerical libraries of a process may use."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from typing import Any

LIMIT = "OMP_NUM_THREADS"
"""OpenMP's variable, from which FAISS and torch take their limit when they load."""


def pin_threads(count: int) -> None:
    """Keep FAISS and torch to ``count`` cores, so that replicas on one host do not take each other's.

    torch's setting is the process's; FAISS's (an OpenMP runtime of its own) is that of the calling
    thread. Call it where a thread starts in a process that `pin_process` has pinned, and make it the
    initialiser of every executor whose threads search:
    ``ThreadPoolExecutor(8, initializer=pin_threads, initargs=(count,))``.
    Neither library is loaded for this: both take seconds, and one that loads later is bound already.
    """
    assert count >= 1
    if faiss := _loaded("faiss"):
        faiss.omp_set_num_threads(count)
    if torch := _loaded("torch"):
        torch.set_num_threads(count)


def pin_process(count: int) -> None:
    """`pin_threads` for all threads of this process that are still to come, and for libraries not loaded yet.

    torch's pool for operators side by side, which nobody here needs wider, is held where torch is loaded.
    Libraries that read their limit when they load, such as numpy's, are held by variables of the process.
    """
    faiss, torch = _loaded("faiss"), _loaded("torch")
    if not (faiss and torch):
        os.environ[LIMIT] = str(count)
    pin_threads(count)
    if torch and torch.get_num_interop_threads() != count:
        with suppress(RuntimeError):  # it can be set once a process; whoever was first has decided
            torch.set_num_interop_threads(count)


def _loaded(name: str) -> Any:
    """The module where some thread has imported it or is about to, waiting for the end of that; else None."""
    return importlib.import_module(name) if name in sys.modules else None
