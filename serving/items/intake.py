"""Changes of items on their way in: checked one by one against the live release, made together, told one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import ValidationError

from configs.errors import InvalidRequest, Unavailable
from configs.settings import Settings
from features.item_changes import ItemChange, ItemChanges
from features.live_catalogue import LiveCatalogue
from features.parsing import MAX_ID_LENGTH
from serving.items.schemas import Change, ChangesRequest
from serving.release import Release

Result = dict[str, Any]


class ItemIntake:
    """Takes changes.

    Args:
        release: the one that serves, whose fields items have; None while there is none.
    """

    def __init__(self, settings: Settings, release: Callable[[], Release | None]):
        self._file, self._release = settings.item_changes_file, release
        self._changes: ItemChanges | None = None
        self._thread = ThreadPoolExecutor(1, "item-changes")

    async def take(self, request: ChangesRequest) -> dict[str, Any]:
        """Make the changes that are right; see `serving.items.schemas.ChangesReply`.

        Raises:
            Unavailable: no release says which fields there are, or the changes cannot be written. Nothing is
                changed then.
        """
        release = self._release()
        if release is None or not isinstance(release.catalogue, LiveCatalogue):
            raise Unavailable("not ready: no release says which fields items have")
        results, changes = _checked(request.changes, release.catalogue)
        version = await asyncio.get_running_loop().run_in_executor(self._thread, self._apply, changes)
        refused = sum(result["status"] == "refused" for result in results)
        return {"accepted": len(changes), "refused": refused, "version": version, "results": results}

    def close(self) -> None:
        self._thread.shutdown(wait=True)
        if self._changes is not None:
            self._changes.close()

    def _apply(self, changes: Sequence[ItemChange]) -> int:
        self._changes = self._changes or ItemChanges(self._file)
        return self._changes.apply(changes)


def _checked(raws: Sequence[Any], catalogue: LiveCatalogue) -> tuple[list[Result], list[ItemChange]]:
    results, changes = [], []
    for raw in raws:
        given = raw.get("item_id") if isinstance(raw, dict) else None
        result: Result = {"item_id": given if isinstance(given, str) and len(given) <= MAX_ID_LENGTH else None}
        try:
            changes.append(_change(raw, catalogue))
            result["status"] = "accepted"
        except InvalidRequest as error:
            result |= {"status": "refused", "field": error.field, "message": error.message}
        results.append(result)
    return results, changes


def _change(raw: Any, catalogue: LiveCatalogue) -> ItemChange:
    """Raises InvalidRequest naming field and remedy."""
    try:
        change = Change.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(map(str, first["loc"][:2])) or "change"
        raise InvalidRequest(f"{path}: {first['msg']}", path) from None
    if change.delete and change.fields:
        raise InvalidRequest("fields: a deleted item has none; leave fields or delete out", "fields")
    for name, value in change.fields.items():
        catalogue.check(name, value)
    return ItemChange(change.item_id, change.fields, change.delete)
