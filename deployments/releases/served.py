"""What the service of a home is told to serve: read, and changed inside the running replicas by ``user_config``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from configs.errors import Unavailable
from configs.settings import Settings
from deployments.cluster import Cluster, ClusterRecord
from deployments.plan import GATEWAY
from deployments.rollout import APPLICATION, await_ready, deploy, instance_details

SWAP_TIMEOUT_S = 300.0
_ROOT = ("proxy_location", "http_options", "grpc_options")
_HTTP = ("host", "port", "root_path", "request_timeout_s", "keep_alive_timeout_s")


class Served:
    """The application that runs in a home, by Serve's REST interface."""

    def __init__(self, record: ClusterRecord, token: str):
        self._record, self._token = record, token

    @classmethod
    def find(cls, settings: Settings) -> Served | None:
        """The one of this home; None when nothing runs there."""
        cluster = Cluster(settings.home)
        record = cluster.record()
        return cls(record, cluster.token()) if record is not None and cluster.is_alive() else None

    def choice(self) -> dict[str, Any]:
        """The gateway's ``user_config``; see `deployments.choice.ReleaseChoice`."""
        deployments = self._application()["deployed_app_config"].get("deployments", [])
        found = next((each for each in deployments if each["name"] == GATEWAY), {})
        return dict(found.get("user_config") or {})

    def choose(
        self,
        choice: Mapping[str, Any],
        timeout_s: float = SWAP_TIMEOUT_S,
        told: Callable[[str], None] = lambda status: None,
    ) -> None:
        """Give every deployment this ``user_config``, and return once all replicas have taken it.

        Nothing else of the document changes, so no replica is restarted.

        Raises:
            Unavailable: the service does not answer, or does not serve the version in time; says why.
            ConfigError: Serve refuses the document.
        """
        details = instance_details(self._record, self._token)
        deploy(self._record, self._token, with_choice(details, choice))
        await_ready(self._record, self._token, timeout_s, choice.get("version"), told)

    def _application(self) -> dict[str, Any]:
        found = instance_details(self._record, self._token).get("applications", {}).get(APPLICATION)
        if not found or not found.get("deployed_app_config"):
            raise Unavailable(f"the cluster at {self._record.address} serves no {APPLICATION} yet; run `recpool up`")
        return found


def with_choice(details: Mapping[str, Any], choice: Mapping[str, Any]) -> dict[str, Any]:
    """The document that would leave everything of an instance as it is, but for our application's ``user_config``.

    Args:
        details: as GET /api/serve/applications/ answers.
    """
    document: dict[str, Any] = {name: details[name] for name in _ROOT if details.get(name)}
    if "http_options" in document:
        document["http_options"] = {k: v for k, v in document["http_options"].items() if k in _HTTP and v is not None}
    applications = [each["deployed_app_config"] for each in details["applications"].values()]
    document["applications"] = [
        {**each, "deployments": [{**one, "user_config": dict(choice)} for one in each.get("deployments", [])]}
        if each["name"] == APPLICATION
        else each
        for each in applications
        if each
    ]
    return document
