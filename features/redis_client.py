"""One way to reach a Redis server, for all that keep something there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from configs.errors import ConfigError, Unavailable


def connect(url: str, timeout_s: float, setting: str) -> redis.Redis:
    """A client; nothing is sent before it is used.

    Args:
        setting: where the URL comes from, for people.
    Raises:
        ConfigError: it is no URL of a server.
    """
    # One retry covers a pooled connection that the server has closed; whoever writes must bear that it is
    # sent twice. A timeout is never retried, or the bound would double.
    retry = Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,))
    try:
        return redis.Redis.from_url(url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=retry)
    except ValueError:
        # The library's own message may repeat the password.
        raise ConfigError(
            f"{setting} {without_password(url)!r} is no URL of a Redis server; write "
            "redis://HOST:PORT/DATABASE, rediss:// the same for TLS, or unix://PATH?db=DATABASE"
        ) from None


@contextmanager
def answering(what: str, url: str) -> Iterator[None]:
    """Raises Unavailable for whatever the library raises in the block; names what is kept there and the server."""
    try:
        yield
    except redis.RedisError as error:
        raise Unavailable(f"{what} {without_password(url)}: {error}") from error


def without_password(url: str) -> str:
    before, _, address = url.rpartition("@")
    scheme, separator, _ = before.partition("://")
    return f"{scheme}{separator}{address}" if separator else address
