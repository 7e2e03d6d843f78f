"""The pool's controller on a cluster: started once, found by name, and told how works are made."""

from __future__ import annotations

import logging
from typing import Any

import ray

from configs.settings import Settings
from deployments.environment import Folders
from deployments.gates import gate_folder
from deployments.pool_client import CONTROLLER, NAMESPACE
from pool.release_costs import ReleaseShape
from pool.runtime.controller_actor import THREADS, ControllerActor, ControllerOrder
from pool.runtime.messages import Factory

log = logging.getLogger("recpool.pool")
MAKE_WORK = "serving.works.registry:make_work"
"""``make_work(spec, settings, folder) -> Work``. Workloads are declared specs; none brings code of its own."""
ANNOUNCER = "deployments.ingress_roles:announcer"


def start_controller(
    settings: Settings, make_work: str = MAKE_WORK, name: str = CONTROLLER, argument: Any = None
) -> Any:
    """A handle to the cluster's controller, which is started if there is none. This process is part of the cluster.

    It is detached, so it outlives this process, and Ray starts it again whenever it dies.

    Args:
        make_work: ``module:function`` called with (spec, argument, folder) on the device's node.
        argument: absent: the settings.
    """
    home = settings.home.absolute()
    settings = settings.model_copy(update={"home": home})
    order = ControllerOrder(
        settings=settings.pool,
        folder=home / "run" / "pool",
        gates=gate_folder(settings),
        profiles=home / "pool" / "profiles",
        releases=ReleaseShape(settings.releases_folder, settings.recall.candidates, settings.ranking.coarse_keep),
        factory=Factory(make_work, settings if argument is None else argument),
        namespace=NAMESPACE,
        announcer=Factory(ANNOUNCER, str(Folders(home).haproxy)) if settings.plan.gateway.shadows else None,
    )
    remote: Any = ray.remote(ControllerActor)
    return remote.options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        max_restarts=-1,
        max_concurrency=THREADS,
    ).remote(order)


def start_pool(settings: Settings) -> None:
    """Start the controller where the settings want a pool; a failure is logged, as serving goes on without one."""
    if not settings.pool.runtime.enabled or not ray.is_initialized():
        return
    try:
        start_controller(settings)
    except Exception:
        log.exception("no pool is started; serving goes on without")
