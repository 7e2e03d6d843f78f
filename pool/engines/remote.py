"""Which engines of a stage run elsewhere, by the settings."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from configs.plan_settings import StageName
from configs.triton_settings import TritonSettings
from pool.engines.engine import Wrap, as_it_is

if TYPE_CHECKING:
    from pool.engines.triton import TritonServer

_servers: dict[TritonSettings, TritonServer] = {}
_lock = threading.Lock()


def triton_wrap(settings: TritonSettings, stage: StageName, version: str) -> Wrap:
    """What makes the engines of a stage ask the Triton server, where the settings have it do so.

    Args:
        version: of the release that the models are of.
    """
    if settings.url is None or stage not in settings.stages:
        return as_it_is
    from pool.engines.triton import TritonServer  # its client takes time and memory to load

    with _lock:
        server = _servers.get(settings) or _servers.setdefault(settings, TritonServer(settings))
    return lambda model, local: server.engine(model, version, local)
