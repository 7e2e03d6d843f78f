"""Models as a service on Ray Serve: an application of its own beside the recommender's, behind the same HAProxy.

A model that somebody brings must not be able to take the recommender's processes down, so it runs in others. REST
comes by HAProxy, below ``/v2``; gRPC straight to a port of this machine.

    serve run deployments.inference:build_inference profile=default
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ray import serve
from ray.serve.schema import LoggingConfig
from starlette.requests import Request
from starlette.types import ASGIApp

from configs.errors import Unavailable
from configs.settings import Settings, load_settings
from deployments import express, first_steps
from deployments.environment import Folders
from deployments.inference_config import DEPLOYMENT, InferenceArguments
from deployments.inference_slices import ModelSlices
from deployments.plan import THREAD_VARIABLES
from deployments.pool_requests import AdminRule
from serving.inference_protocol.service import InferenceService

log = logging.getLogger("recpool.inference")
MAX_ONGOING_REQUESTS = 10_000
"""The queue of each model refuses by itself."""
GRACEFUL_SHUTDOWN_S = 10.0


@serve.ingress()
class Inference:
    """One replica with all models, and both sides of the protocol."""

    def __init__(self, settings: Settings):
        rule = AdminRule(settings.serving.host, Folders(settings.home).token)
        self._slices = ModelSlices(settings)

        def check(headers: dict[bytes, bytes]) -> None:
            rule.check(Request({"type": "http", "headers": list(headers.items())}))

        self._service = InferenceService(settings, self._slices.follow, check)
        express.register(self._service.rest)
        self._listening: asyncio.Task[None] | None = None

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return self._service.rest

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Begin; Serve calls it once the replica's loop runs. There is nothing to configure while it does."""
        if self._listening is None:
            self._service.start()
            self._listening = asyncio.create_task(self._service.listen())
            first_steps.done()

    async def check_health(self) -> None:
        """Raises Unavailable when the gRPC side could not be started for a reason of its own."""
        task = self._listening
        if task is not None and task.done() and not task.cancelled() and task.exception() is not None:
            raise Unavailable(f"gRPC is not served: {task.exception()}")

    async def __del__(self) -> None:
        self._slices.stop()
        await self._service.close()


def build_inference(arguments: dict[str, Any]) -> serve.Application:
    """Compose the application of a profile; `InferenceArguments` has the arguments."""
    checked = InferenceArguments.model_validate(arguments)
    return compose_inference(load_settings(checked.profile, checked.overrides))


def compose_inference(settings: Settings) -> serve.Application:
    """Bind the deployment of a settings tree."""
    # Replicas start in another folder than the one a relative home was meant from.
    settings = settings.model_copy(update={"home": settings.home.absolute()})
    wanted = settings.inference
    wrap = serve.deployment(
        name=DEPLOYMENT,
        num_replicas=wanted.replicas,
        user_config={},
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        graceful_shutdown_timeout_s=GRACEFUL_SHUTDOWN_S,
        logging_config=LoggingConfig(enable_access_log=False),
        ray_actor_options={
            "num_cpus": wanted.share_milli / 1000,
            "runtime_env": {"env_vars": dict.fromkeys(THREAD_VARIABLES, str(wanted.threads))},
        },
    )
    return wrap(Inference).bind(settings)
