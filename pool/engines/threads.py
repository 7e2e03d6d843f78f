"""How many cores the numerical libraries of a process may use."""

from __future__ import annotations

from contextlib import suppress

import faiss
import torch


def pin_threads(count: int) -> None:
    """Keep FAISS and torch to ``count`` cores, so that replicas on one host do not take each other's.

    torch's setting is the process's; FAISS's (an OpenMP runtime of its own) is that of the calling
    thread. Call it where a process starts, and make it the initialiser of every executor whose
    threads search: ``ThreadPoolExecutor(8, initializer=pin_threads, initargs=(count,))``.
    """
    assert count >= 1
    faiss.omp_set_num_threads(count)  # type: ignore[attr-defined]
    torch.set_num_threads(count)


def pin_process(count: int) -> None:
    """`pin_threads`, and torch's pool for operators side by side, which nobody here needs wider.

    Libraries that read their limit when they load, such as numpy's, are held by variables of the process.
    """
    pin_threads(count)
    if torch.get_num_interop_threads() != count:
        with suppress(RuntimeError):  # it can be set once a process; whoever was first has decided
            torch.set_num_interop_threads(count)
