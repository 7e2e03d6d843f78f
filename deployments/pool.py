"""The pool's controller on a cluster: started once, found by name, and told how works are made."""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from pathlib import Path
from typing import Any

import ray

from configs.errors import ConfigError
from configs.settings import Settings
from deployments.pool_client import CONTROLLER, NAMESPACE
from pool.runtime.controller_actor import THREADS, ControllerActor, ControllerOrder
from pool.runtime.messages import Factory

log = logging.getLogger("recpool.pool")
MAKE_WORK = "serving.works.registry:make_work"
"""``make_work(spec, settings, folder) -> Work``. Workloads are declared specs; none brings code of its own."""
SHARED_MEMORY = Path("/dev/shm")


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
        factory=Factory(make_work, settings if argument is None else argument),
        namespace=NAMESPACE,
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


def gate_folder(settings: Settings) -> Path:
    """Where the gates of this home lie: as the settings say, else in memory, else in the home.

    On a disk, the kernel may make a writer of a word wait while it writes the page back; in memory it does not.

    Raises:
        ConfigError: the folder in memory is somebody else's.
    """
    if settings.pool.runtime.gate_folder is not None:
        return settings.pool.runtime.gate_folder.absolute()
    home = settings.home.absolute()
    if not SHARED_MEMORY.is_dir() or not os.access(SHARED_MEMORY, os.W_OK):
        return home / "run" / "gate"
    folder = SHARED_MEMORY / f"recpool-{hashlib.sha256(str(home).encode()).hexdigest()[:12]}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()  # of a link itself, which leads wherever its maker likes
    others_write = stat.S_IMODE(found.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or others_write:
        raise ConfigError(
            f"pool.runtime.gate_folder: {folder} is not a folder of this user alone; remove it, or name another"
        )
    return folder
