"""A process that starts beside others that serve does so at a lower rank, and leaves it once it is ready.

To import what a replica needs and to load its models takes some seconds of a core. At the rank of those that serve,
two replicas that start at once make every request on a small machine wait. Ray can start its processes at any nice
value (``RAY_worker_niceness``, 15 by itself); what comes to serve then takes its own rank.
"""

from __future__ import annotations

from pool.gate import cpu

NICE = 5
"""A third of the weight of one that serves (sched(7)): where replicas are missing they still get ready, if later."""
IMPORT_PATH = "deployments.first_steps:done"


def nice() -> int:
    """At which nice value processes start: the usual one where none could leave a lower one again."""
    return NICE if cpu.may_rise() else 0


def done() -> None:
    """Give this process the rank of those that serve."""
    cpu.set_class("guaranteed")
