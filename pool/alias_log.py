"""Which release has which alias, as a log: each change is a file of its own, made only if nobody made it first.

    aliases/00000001.json   {"number": 1, "event": "promoted", "version": "3", "aliases": {"champion": "3"}, ...}
    aliases/00000002.json   the next change, with the whole table as it is from then on

The highest number holds. Nothing is ever rewritten, so a reader sees the table before a change or after it, a crash
loses nothing that was acknowledged, and of two writers who read the same table one finds the next number taken. The
log is also the history of every release: what was decided about it, when, and why.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from configs.errors import ArtifactError, Conflict
from pool.manifest import first_fault

_NAME = re.compile(r"[0-9]{8}\.json")


class Change(BaseModel):
    """One entry: what happened to a release, and the table of aliases from then on.

    Attributes:
        at_s: seconds since 1970.
        by: host and process that wrote it.
        event: such as ``promoted``; what does not touch the table is kept as well.
        figures: what the decision rests on.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int
    at_s: float
    by: str
    event: str
    version: str
    reason: str
    aliases: dict[str, str]
    figures: dict[str, JsonValue] = {}


class Entries(Protocol):
    """Small files by name, in a folder or an object store."""

    def names(self) -> list[str]: ...

    def read(self, name: str) -> bytes: ...

    def create(self, name: str, content: bytes) -> None:
        """Write a new file durably and at once. Raises FileExistsError when there is one of that name."""
        ...


class AliasLog:
    """The log over some entries.

    Args:
        before: the table before the first entry.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        entries: Entries,
        before: Callable[[], Mapping[str, str]] = dict,
        clock: Callable[[], float] = time.time,
    ):
        self._entries, self._before, self._clock = entries, before, clock

    def table(self) -> dict[str, str]:
        """Versions by alias. Raises ArtifactError when the newest entry cannot be read."""
        return self._newest()[1]

    def changes(self) -> list[Change]:
        """All entries, oldest first."""
        return [self._read(name) for name in self._names()]

    def change(
        self,
        event: str,
        version: str,
        reason: str,
        edit: Callable[[dict[str, str]], Mapping[str, str]],
        figures: Mapping[str, JsonValue] | None = None,
    ) -> Change:
        """Add an entry with the table that ``edit`` makes of the present one; durable when it returns.

        Raises:
            Conflict: somebody else changed the table meanwhile; says who and what. Whatever ``edit`` raises.
        """
        number, table = self._newest()
        new = edit(dict(table))
        if not number and table:  # else nobody could tell later what was before the first change
            number = self._add(1, "kept from before", next(iter(table.values())), "", table, {}).number
        return self._add(number + 1, event, version, reason, new, figures or {})

    def note(self, event: str, version: str, reason: str, figures: Mapping[str, JsonValue] | None = None) -> Change:
        """Add an entry that leaves the table as it is, whatever else is added meanwhile."""
        while True:
            number, table = self._newest()
            try:
                return self._add(number + 1, event, version, reason, table, figures or {})
            except Conflict:
                continue

    def _add(
        self,
        number: int,
        event: str,
        version: str,
        reason: str,
        table: Mapping[str, str],
        figures: Mapping[str, JsonValue],
    ) -> Change:
        change = Change(
            number=number, at_s=self._clock(), by=f"{socket.gethostname()}/{os.getpid()}", event=event, version=version,
            reason=reason, aliases=dict(table), figures=dict(figures),
        )  # fmt: skip
        try:
            self._entries.create(f"{number:08}.json", change.model_dump_json().encode())
        except FileExistsError:
            other = self._read(f"{number:08}.json")
            raise Conflict(
                f"release {version} is not {event}: {other.by} came first, release {other.version} is {other.event}"
                f"{f' ({other.reason})' if other.reason else ''}; see `recpool release list`, and say it again"
            ) from None
        return change

    def _newest(self) -> tuple[int, dict[str, str]]:
        names = self._names()
        if not names:
            return 0, dict(self._before())
        newest = self._read(names[-1])
        return newest.number, newest.aliases

    def _names(self) -> list[str]:
        return sorted(filter(_NAME.fullmatch, self._entries.names()))

    def _read(self, name: str) -> Change:
        try:
            return Change.model_validate_json(self._entries.read(name))
        except (OSError, ValidationError) as error:
            raise ArtifactError(
                f"aliases/{name}: not a readable change of aliases ({first_fault(error)}); restore it, or remove it "
                "and promote again"
            ) from error
