"""Routes outlive a controller that comes back and knows of no replica (case 23)."""

from __future__ import annotations

import pytest

from deployments import haproxy_launcher
from deployments.haproxy_launcher import ROUTED, with_routes

EMPTY = "\ndefaults\nlisten stats\n"


def with_replica(port: int) -> str:
    return f"\ndefaults\nbackend http-recpool\n    server one 127.0.0.1:{port} check\nlisten stats\n"


@pytest.fixture
def listens(monkeypatch) -> int:
    """The one port on which some replica listens."""
    port = 30_000
    monkeypatch.setattr(haproxy_launcher, "listeners", lambda ports: {port: [1]} if port in ports else {})
    return port


def test_the_last_routes_stay_while_their_replicas_are_there(tmp_path, listens):
    routed = tmp_path / ROUTED
    assert with_routes(EMPTY, routed, is_handed_over=False) == EMPTY, "there never were any"
    text = with_replica(listens)
    assert with_routes(text, routed, is_handed_over=False) == text
    assert with_routes(EMPTY, routed, is_handed_over=False) == text
    other = with_replica(listens + 1)
    assert with_routes(other, routed, is_handed_over=False) == other, "who has routes is believed"
    assert with_routes(EMPTY, routed, is_handed_over=False) == EMPTY, "nobody listens there any more"
    assert with_routes(EMPTY, routed, is_handed_over=True) == other
