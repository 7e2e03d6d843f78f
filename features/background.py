"""Work beside serving, on a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


def in_background(name: str, work: Callable[[], None]) -> threading.Thread:
    """Start some work, once; what it raises is logged.

    The thread has the priority of the others: one that gave way to them while it held the interpreter's lock would
    have them all wait.
    """

    def run() -> None:
        try:
            work()
        except Exception:  # the edge of the thread
            log.exception("%s failed", name)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
