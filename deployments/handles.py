"""A stage in another process, seen as a plain callable."""

from __future__ import annotations

import asyncio
from typing import Any

from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from configs.errors import Unavailable


class RemoteStage:
    """Calls ``run`` of a stage deployment; conforms to `serving.types.StageCaller`."""

    def __init__(self, stage: str, handle: DeploymentHandle):
        self._stage = stage
        self._run = handle.run

    async def __call__(self, query: Any, timeout_s: float) -> Any:
        """The stage's answer.

        Raises:
            TimeoutError: none came within ``timeout_s``; the replica is told to drop the work.
            Unavailable: the replica died, or none takes the call.
            RecpoolError: what the stage itself raised.
        """
        response = self._run.remote(query, timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                return await response
        except (TimeoutError, asyncio.CancelledError):
            response.cancel()
            raise
        except (RayActorError, BackPressureError, DeploymentUnavailableError) as error:
            raise Unavailable(f"stage {self._stage}: {type(error).__name__}") from error
