"""Where user rows and histories live online: one small protocol, two implementations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from configs.errors import ConfigError
from configs.settings import StoreSettings
from features.datasets import Dataset
from features.store_embedded import EmbeddedStore
from features.store_records import UserEvent, UserRecord
from features.store_redis import RedisStore

__all__ = ["FeatureStore", "UserEvent", "UserRecord", "open_store"]


class FeatureStore(Protocol):
    """User rows with read-your-writes: what `record` has returned from, every later `fetch` shows.

    Methods raise InvalidRequest for an impossible id and Unavailable when the store does not answer.
    """

    def fetch(self, user_ids: Sequence[str]) -> list[UserRecord | None]:
        """One row or None for each id, in order."""
        ...

    def record(self, user_id: str, events: Sequence[UserEvent]) -> None:
        """Append events (oldest first) to a user's history, making the user when absent."""
        ...

    def record_many(self, events: Mapping[str, Sequence[UserEvent]]) -> None:
        """`record` for many users at once: all of it or, on an error, nothing."""
        ...

    def put(self, user_id: str, features: Mapping[str, Any]) -> None:
        """Replace a user's profile, making the user when absent."""
        ...

    def load(self, dataset: Dataset, progress: Callable[[float], None] | None = None) -> int:
        """Bring in all users of a dataset; repeatable; returns how many."""
        ...

    def close(self) -> None: ...


STORES: dict[str, Callable[[StoreSettings, Path], FeatureStore]] = {
    "embedded": EmbeddedStore,
    "redis": lambda settings, folder: RedisStore(settings, namespace=folder.name),
}


def open_store(settings: StoreSettings, folder: Path) -> FeatureStore:
    """Open the store that the settings name.

    Args:
        folder: where an embedded store keeps its file; its name is the namespace on a server.
    Raises:
        ConfigError: no store of that kind; lists the known ones.
    """
    if settings.kind not in STORES:
        raise ConfigError(f"store.kind {settings.kind!r} is unknown; known kinds: {sorted(STORES)}")
    return STORES[settings.kind](settings, folder)
