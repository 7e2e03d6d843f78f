"""The controller's book of costs: who held and used what, tick by tick, kept in a file of its own."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson

from configs.errors import Conflict
from configs.pool_runtime_settings import DeviceSettings
from features.files import write_atomically
from pool.policy.cost import CostBook, DeviceCost, SliceUse
from pool.policy.cost_summary import CostSummary, summary_of
from pool.release_costs import FUNNEL
from pool.runtime.observing import all_meters
from pool.runtime.state import PoolState

log = logging.getLogger("recpool.pool")
FILE = "costs.json"
CHARGE_S = 1.0
"""Between two charges; what was metered is of the last second."""
LONGEST_S = 30.0
"""Between two charges; of a longer time nobody knows who used what."""
MOST_S = 31 * 86_400.0
"""Of a time without a controller that is counted."""
SAVE_S = 60.0
"""Of costs that the end of a controller loses at most."""


class CostKeeper:
    """Charges what the controller sees.

    Args:
        folder: of the journal.
        devices: of the settings, by which a missing price is named; none where they are discovered.
    """

    def __init__(self, folder: Path, devices: Sequence[DeviceSettings] = ()):
        self._file, self._devices = folder / FILE, devices
        self._book = _read(self._file)
        self._charged_s: float | None = None
        self._saved_s = float("-inf")
        self._scenes: dict[str, Mapping[str, float]] = {}

    def charge(self, state: PoolState, now_s: float, wall_s: float) -> None:
        """The time since the last charge, at what is held and metered now.

        Args:
            now_s: monotonic; wall_s: seconds since 1970.
        """
        since_s, devices = self._charged_s, devices_of(state)
        if since_s is not None and now_s - since_s < CHARGE_S:
            return
        self._charged_s = now_s
        if not all(each.price_per_hour for each in devices):
            return
        if since_s is None:  # a controller before this one may have charged
            since_s = now_s - min(MOST_S, max(0.0, wall_s - self._book.last_s)) if self._book.last_s else now_s
        if now_s - since_s > LONGEST_S:
            self._book.passed(wall_s, now_s - since_s)
        else:
            self._book.charge(wall_s, now_s - since_s, devices, self._slices(state))
        if now_s - self._saved_s >= SAVE_S:
            self._saved_s = now_s
            self._save()

    def summary(self, state: PoolState, wall_s: float) -> CostSummary:
        """Of this month.

        Raises:
            Conflict: a device has no price; names the setting.
        """
        devices = devices_of(state)
        for device in devices:
            if not device.price_per_hour:
                place = next((n for n, stated in enumerate(self._devices) if stated.id == device.id), None)
                own = f"pool.devices.{place}.price_per_hour" if place is not None else ""
                kind = f"pool.price_per_hour.{device.kind}"
                raise Conflict(
                    f"{own or kind}: {device.id} has no price, so nothing is charged; state {own or 'it'}"
                    f"{f', or {kind} for all of its kind' if own else ''}"
                )
        return summary_of(self._book, wall_s, devices)

    def _slices(self, state: PoolState) -> list[SliceUse]:
        meters, found = all_meters(state), []
        for lease in state.ledger.leases():
            record, claimed = state.records.get(lease.workload), state.claims.get(lease.id)
            metered = meters.get(lease.id)
            found.append(
                SliceUse(
                    workload=lease.workload,
                    device=lease.device,
                    kind=record.spec.kind if record else "inference",
                    model=record.spec.model if record else FUNNEL,
                    team=record.spec.team if record else "",
                    leased_milli=lease.milli,
                    used_milli=metered.metered_milli if metered else 0,
                    scenes=self._news(claimed.claim.holder, claimed.claim.scenes) if claimed else {},
                )
            )
        held = {claimed.claim.holder for claimed in state.claims.values()}
        self._scenes = {holder: scenes for holder, scenes in self._scenes.items() if holder in held}
        return found

    def _news(self, holder: str, scenes: Mapping[str, float]) -> dict[str, float]:
        """Requests by scene since its last charge; where none came, those of its whole life."""
        before = self._scenes.get(holder, {})
        news = {scene: max(0.0, count - before.get(scene, 0.0)) for scene, count in scenes.items()}
        self._scenes[holder] = scenes
        return news if any(news.values()) else dict(scenes)

    def _save(self) -> None:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._file, orjson.dumps(self._book.plain()))
        except OSError as error:
            log.warning("costs are not kept: %s", error)


def devices_of(state: PoolState) -> list[DeviceCost]:
    """Those that are there; one whose node has died costs nothing any more."""
    gone = {name for name, site in state.sites.items() if site.node_id in state.dead_nodes}
    there = [device for device in state.ledger.devices() if device.id in state.sites.keys() - gone]
    return [DeviceCost(device.id, device.kind, device.price_per_hour) for device in there]


def _read(file: Path) -> CostBook:
    """What was kept; a file that cannot be read is set aside, and the month begins anew."""
    try:
        return CostBook.restored(orjson.loads(file.read_bytes()))
    except FileNotFoundError:
        return CostBook()
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        log.error("%s cannot be read, costs begin anew: %s", file, error)
        file.rename(file.with_suffix(".unreadable"))
        return CostBook()
