"""``recpool budget``: where the time of a request goes."""

from __future__ import annotations

from typing import Annotated

import typer

from deployments.budget import measure
from deployments.cluster import http_address
from deployments.console import show
from deployments.offline import load_dataset
from deployments.options import AsJson, DatasetName, Profile, resolve
from features.schema import USER_ID

Requests = Annotated[int, typer.Option(min=1, max=100_000, help="requests to ask, one after the other")]


def budget(
    profile: Profile = "default", dataset: DatasetName = None, requests: Requests = 200, as_json: AsJson = False
) -> None:
    """Ask the running service and show what each part of a request takes."""
    settings, _ = resolve(profile, dataset)
    users = load_dataset(settings).users.column(USER_ID).to_pylist()
    found = measure(http_address(settings), users[:: max(1, len(users) // requests)], requests)
    show(found.as_dict(), found.lines(), as_json)
