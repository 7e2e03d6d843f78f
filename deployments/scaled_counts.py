"""Replica counts of an application whose autoscaler is outside of Serve, in the document that Serve is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from configs.settings import Settings

SCALED = "external_scaler_enabled"


def scaled_by_us(settings: Settings) -> dict[str, bool]:
    """What the application says of itself when its replica counts follow demand; nothing when they are fixed."""
    return {SCALED: True} if settings.autoscale.deployments else {}


def with_counts(document: Mapping[str, Any], running: Mapping[str, Any]) -> dict[str, Any]:
    """A document that keeps the counts that the autoscaler has chosen; without them a new release would come with a
    leap to the planned counts.

    Args:
        running: applications as Serve's REST interface describes them, by name.
    """
    applications = [_kept(each, running.get(each["name"]) or {}) for each in document["applications"]]
    return {**document, "applications": applications}


def _kept(application: Mapping[str, Any], running: Mapping[str, Any]) -> dict[str, Any]:
    there = running.get("deployments", {}) if application.get(SCALED) else {}
    deployments = [
        {**each, "num_replicas": there[each["name"]]["target_num_replicas"]} if each["name"] in there else dict(each)
        for each in application["deployments"]
    ]
    return {**application, "deployments": deployments}
