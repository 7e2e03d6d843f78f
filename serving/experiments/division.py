"""The traffic of one replica, divided: which release and which funnel a request gets, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from serving.desk import Desk
from serving.experiments.assignment import arm_of, is_chosen
from serving.experiments.roles import CHALLENGER, CHAMPION, SHADOW, DivisionReport
from serving.experiments.spec import WHOLE, Traffic
from serving.experiments.tally import Tally
from serving.live import Funnel, Live

FAILED = ("failed", "timeout")
"""Reasons for doing without a stage that speak of the release; others speak of the load."""


@dataclass(frozen=True)
class Part:
    """What a request gets.

    Attributes:
        funnel: the release's own, or an arm's.
        told: what the impression says of it; empty where nothing is divided.
        counts: whether what becomes of it says something of the release.
    """

    role: str
    live: Live
    funnel: Funnel
    desk: Desk
    told: Mapping[str, Any] = field(default_factory=dict)
    counts: bool = True


class Side:
    """A release that serves here, with its desk and the arms' funnels."""

    def __init__(self, role: str, live: Live, desk: Desk, traffic: Traffic):
        self.role, self.live, self.desk = role, live, desk
        self.own = live.funnel(desk.place)
        self._arms = live.arms(traffic.experiments, desk.place)
        self._experiments = traffic.experiments
        self.whole = Part(role, live, self.own, desk)

    def part(self, user_id: str | None, scene: str | None, told: Mapping[str, Any]) -> Part:
        """For a request of a user; those who do not say who they are take part in no experiment."""
        for experiment in self._experiments if user_id is not None else ():
            if experiment.scenes and scene not in experiment.scenes:
                continue
            shares = [arm.share for arm in experiment.arms]
            place = arm_of(str(user_id), experiment.salt or experiment.name, shares)
            if place is not None:
                arm = experiment.arms[place].name
                told = {**told, "experiment": experiment.name, "arm": arm}
                return Part(self.role, self.live, self._arms[experiment.name, arm], self.desk, told)
        return Part(self.role, self.live, self.own, self.desk, told) if told else self.whole


class Division:
    """How the traffic is divided here from some moment on. Nothing is shared between divisions but releases and desks.

    Args:
        sides: the champion's, and the others' as far as they could be loaded, by role.
        missing: releases that could not be, each with the reason.
    """

    def __init__(self, traffic: Traffic, sides: Mapping[str, Side], missing: Mapping[str, str]):
        self.traffic, self.sides, self._missing = traffic, sides, dict(missing)
        self.tallies = {role: Tally() for role in sides}
        self.stopped = ""
        self._due = 0.0

    @property
    def champion(self) -> Side:
        return self.sides[CHAMPION]

    @property
    def compares(self) -> bool:
        """Whether other releases are to have a part, so that somebody should look how they do."""
        return bool(self.traffic.versions)

    def part(self, user_id: str | None, scene: str | None = None) -> Part:
        """What a request gets."""
        challenger, wanted = self.sides.get(CHALLENGER), self.traffic.challenger
        if wanted is None:
            return self.champion.part(user_id, scene, {})
        chosen = user_id is not None and is_chosen(user_id, wanted.salt, wanted.share)
        if challenger is None or self.stopped or not chosen:
            return self.champion.part(user_id, scene, {"role": CHAMPION})
        return challenger.part(user_id, scene, {"role": CHALLENGER})

    def instead(self, part: Part, user_id: str | None, scene: str | None) -> Part:
        """What answers instead of a challenger; any other part stays."""
        if part.role != CHALLENGER:
            return part
        return replace(self.champion.part(user_id, scene, {"role": CHAMPION, "instead": True}), counts=False)

    def tally(self, part: Part) -> Tally:
        """Where what becomes of a request is counted."""
        return self.tallies[part.role] if part.counts else Tally()

    def wants_mirror(self) -> Side | None:
        """The shadow, when the next request is one that it is to be asked, too."""
        wanted, shadow = self.traffic.shadow, self.sides.get(SHADOW)
        if wanted is None or shadow is None or self.stopped:
            return None
        self._due += wanted.share
        if self._due < 1:
            return None
        self._due -= 1
        return shadow

    def stop(self, reason: str) -> None:
        """Give challenger and shadow nothing more; the champion answers all."""
        self.stopped = self.stopped or reason

    def report(self, replica: str) -> DivisionReport:
        traffic = self.traffic.model_dump(mode="json")
        return DivisionReport(replica, traffic, self.tallies, self.stopped, self._missing)


def is_broken(degraded: list[dict[str, str]]) -> bool:
    """Whether an answer lacks something because a stage failed; errors of our own tree are told by their class."""
    return any(each["reason"] in FAILED or each["reason"][:1].isupper() for each in degraded)


def is_empty(reply: Mapping[str, Any], is_filtered: bool) -> bool:
    """Whether an answer has no item although nothing in the request asked for that."""
    return not reply["returned"] and not is_filtered


def common_share(champion: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Share of the champion's items that the other answer has too; two empty answers are alike."""
    wanted = {item["id"] for item in champion["items"]}
    return len(wanted & {item["id"] for item in other["items"]}) / len(wanted) if wanted else float(not other["items"])


def undivided(live: Live, desk: Desk) -> Division:
    """All traffic to one release."""
    return Division(WHOLE, {CHAMPION: Side(CHAMPION, live, desk, WHOLE)}, {})
