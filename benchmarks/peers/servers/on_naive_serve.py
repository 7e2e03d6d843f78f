"""Ray Serve as its first tutorial has it: a deployment a stage, chained by handles, every setting at its default."""

# pyright: reportMissingImports=false

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path
from typing import Any

import ray
from ray import serve

from benchmarks.peers.funnel import Candidates, Config, Ranked, Ranker, Recall, UserFeatures, Users

SHARE = {"num_cpus": 0.1}
"""Five replicas and Serve's own actors on however few cores; it limits nothing at run time."""


@serve.deployment(ray_actor_options=SHARE)
class Features:
    def __init__(self, config: Config):
        self._features = UserFeatures(Path(config.release), Path(config.store))

    def __call__(self, user_id: str) -> Users:
        return self._features.read([user_id])


@serve.deployment(ray_actor_options=SHARE)
class Sources:
    def __init__(self, config: Config):
        self._recall = Recall(Path(config.release), config)

    def __call__(self, users: Users) -> Candidates:
        return self._recall.find(users)


@serve.deployment(ray_actor_options=SHARE)
class Coarse:
    def __init__(self, config: Config):
        self._ranker, self._keep = Ranker(Path(config.release), "coarse", config), config.coarse_keep

    def __call__(self, users: Users, found: Candidates) -> Candidates:
        return self._ranker.best(users, found, self._keep)


@serve.deployment(ray_actor_options=SHARE)
class Fine:
    def __init__(self, config: Config):
        self._ranker, self._k = Ranker(Path(config.release), "fine", config), config.k

    def __call__(self, users: Users, found: Candidates) -> Ranked:
        return self._ranker.best(users, found, self._k, in_order=True)


@serve.deployment(ray_actor_options=SHARE)
class Post:
    """Takes the HTTP request, sends it through the stages and writes the reply."""

    def __init__(self, config: Config, features: Any, recall: Any, coarse: Any, fine: Any):
        self._names = UserFeatures(Path(config.release), Path(config.store)).item_names
        self._features, self._recall, self._coarse, self._fine = features, recall, coarse, fine

    async def __call__(self, request: Any) -> dict[str, Any]:
        user_id = (await request.json())["user_id"]
        users = await self._features.remote(user_id)
        found = await self._recall.remote(users)
        kept = await self._coarse.remote(users, found)
        best = await self._fine.remote(users, kept)
        return {"ids": self._names[best.items[0]].tolist(), "scores": best.scores[0].tolist()}


def main(port: int) -> None:
    """Start a Ray of its own with Serve on the port; stay until asked to end."""
    ray.init(address="local", include_dashboard=False, logging_level=logging.ERROR)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    config = Config.load()
    stages = [stage.bind(config) for stage in (Features, Sources, Coarse, Fine)]
    serve.run(Post.bind(config, *stages), route_prefix="/recommend")
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
