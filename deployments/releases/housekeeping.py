"""Looking after published releases: which may go, what was before, and how two differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from configs.errors import ArtifactError, Conflict, NotFound
from pool.alias_log import Change
from pool.manifest import Manifest
from pool.repository import CHAMPION, ReleaseRepository

FIELDS = ("dataset", "recipe", "items", "users", "objectives")


@dataclass(frozen=True)
class Collected:
    """What `collect` removed or would remove, with the bytes it held here, and why it left the others."""

    removed: dict[str, int]
    kept: dict[str, str]

    @property
    def freed_bytes(self) -> int:
        return sum(self.removed.values())


def collect(repository: ReleaseRepository, keep: int, dry_run: bool = False) -> Collected:
    """Remove releases that are neither among the newest nor needed, and what was written by half.

    What an alias names, what was champion before, and what a process on this machine has loaded always stays.

    Args:
        keep: newest releases that stay.
    """
    versions = repository.versions()
    whole = [version for version in versions if repository.is_whole(version)]
    needed = needed_versions(whole, keep, repository.aliases(), repository.history())
    removed, kept = {}, dict(needed)
    for version in versions:
        if version in needed:
            continue
        try:
            removed[version] = _size_bytes(repository, version) if dry_run else repository.remove(version)
        except Conflict as error:
            kept[version] = error.message
    return Collected(removed, kept)


def needed_versions(
    versions: Sequence[str], keep: int, aliases: Mapping[str, str], history: Sequence[Change]
) -> dict[str, str]:
    """Versions that must stay, each with the reason.

    Args:
        versions: published ones, oldest first.
        history: all changes of aliases, oldest first.
    """
    needed = dict.fromkeys(versions[-keep:], f"among the newest {keep}")
    before = previous_champion(aliases.get(CHAMPION), history)
    if before in versions:
        needed[str(before)] = "was champion before, and is what `recpool release rollback` returns to"
    for alias, version in aliases.items():
        needed[version] = f"is the {alias}"
    return needed


def previous_champion(now: str | None, history: Sequence[Change]) -> str | None:
    """The newest champion of the history that is another than the present one."""
    champions = (change.aliases.get(CHAMPION) for change in reversed(history))
    return next((version for version in champions if version not in (None, now)), None)


def rollback_target(repository: ReleaseRepository) -> str:
    """What was champion before the present one. Raises NotFound when nothing was, or it was removed."""
    version = previous_champion(repository.champion(), repository.history())
    if version is None:
        raise NotFound("no release was champion before; name one: recpool release promote VERSION")
    repository.path(version)
    return version


def difference(repository: ReleaseRepository, old: str, new: str) -> dict[str, Any]:
    """What differs between two releases: fields, metrics, features, and files by their content.

    Raises NotFound for an unknown version, and ArtifactError for a damaged one.
    """
    a, b = repository.manifest(old), repository.manifest(new)
    fields = {name: [getattr(a, name), getattr(b, name)] for name in FIELDS}
    metrics_a, metrics_b = flat(a.metrics), flat(b.metrics)
    metrics = {name: [metrics_a.get(name), metrics_b.get(name)] for name in sorted({*metrics_a, *metrics_b})}
    return {
        "old": old,
        "new": new,
        "fields": _changed(fields),
        "metrics": _changed(metrics),
        "features": _changed(_features(repository, old, new)),
        "files": _files(a, b),
        "bytes": [a.total_bytes, b.total_bytes],
    }


def release_lines(repository: ReleaseRepository) -> list[dict[str, Any]]:
    """What is published, oldest first, as plain values. Raises ArtifactError for a release that cannot be read."""
    manifests = [repository.manifest(version) for version in repository.versions()]
    aliases = repository.aliases()
    return [
        {
            "version": m.version,
            "aliases": [alias for alias, version in aliases.items() if version == m.version],
            "recipe": m.recipe,
            "created_at_s": m.created_at_s,
            "users": m.users,
            "items": m.items,
            "bytes": m.total_bytes,
        }
        for m in manifests
    ]


def flat(values: Mapping[str, Any], name: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted names."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        full = f"{name}.{key}".lstrip(".")
        found |= flat(value, full) if isinstance(value, Mapping) else {full: value}
    return found


def _changed(pairs: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _features(repository: ReleaseRepository, *versions: str) -> dict[str, list[str | None]]:
    """Each field of either schema by entity and name, with its kind in both."""
    found: list[dict[str, str]] = []
    for version in versions:
        file = repository.path(version) / "encoder.json"
        try:
            schema = orjson.loads(file.read_bytes())["schema"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArtifactError(f"{file}: holds no feature schema ({error}); publish the release again") from error
        found.append({f"{each['entity']}.{each['name']}": each["kind"] for each in schema["fields"]})
    return {name: [each.get(name) for each in found] for name in sorted({*found[0], *found[1]})}


def _files(a: Manifest, b: Manifest) -> dict[str, list[str]]:
    both = a.files.keys() & b.files.keys()
    return {
        "added": sorted(b.files.keys() - a.files.keys()),
        "removed": sorted(a.files.keys() - b.files.keys()),
        "changed": sorted(name for name in both if a.files[name].sha256 != b.files[name].sha256),
    }


def _size_bytes(repository: ReleaseRepository, version: str) -> int:
    folder = repository.folder / version
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
