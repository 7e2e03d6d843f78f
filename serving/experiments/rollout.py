"""How a release comes to serve, step by step, and what is decided at each. Pure: time and what was seen are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from configs.branch import Branch
from configs.release_settings import GateLimits, RolloutLimits
from serving.experiments.judge import breach
from serving.experiments.roles import CHALLENGER, CHAMPION, SHADOW
from serving.experiments.spec import Challenger, Mirror, Traffic, Version
from serving.experiments.tally import Tally

Stage = Literal["gate", "warmup", "shadow", "canary", "promote"]
STAGES: tuple[Stage, ...] = ("gate", "warmup", "shadow", "canary", "promote")


class RolloutPlan(Branch):
    """What is wanted: which release, from which stage on, and how long each step is watched."""

    # YAML and shells write versions as numbers.
    model_config = ConfigDict(coerce_numbers_to_str=True)

    version: Version
    begin_with: Stage = Field(default="gate", description="stages before it are left out")
    shadow_share: float = Field(
        default=0.1, gt=0, le=1, description="of the requests, copied to the release; costs as much more compute"
    )
    canary: tuple[Annotated[float, Field(gt=0, le=1)], ...] = Field(
        default=(0.01, 0.05, 0.25, 0.5), min_length=1, max_length=20, description="shares of the users, one by one"
    )
    hold_s: float = Field(default=30, gt=0, le=86_400, description="seconds that each step is watched at least")
    least_requests: int = Field(
        default=50, ge=1, le=10_000_000, description="answers of the release that each step needs before the next"
    )
    patience_s: float = Field(
        default=900, gt=0, le=7 * 86_400, description="after which a step with fewer answers ends the rollout"
    )

    @model_validator(mode="after")
    def _rising(self) -> Self:
        if list(self.canary) != sorted(set(self.canary)):
            raise ValueError("canary: shares must rise, so that users who were moved stay where they are")
        return self

    def wants(self, stage: Stage) -> bool:
        return STAGES.index(stage) >= STAGES.index(self.begin_with)

    def steps(self) -> tuple[Step, ...]:
        """Divisions of the traffic, in their order; none when it is to be promoted at once."""
        shadow = (Step("shadow", self.shadow_share),) if self.wants("shadow") else ()
        return shadow + (tuple(Step("canary", share) for share in self.canary) if self.wants("canary") else ())


@dataclass(frozen=True)
class Step:
    """One division of the traffic."""

    stage: Literal["shadow", "canary"]
    share: float

    @property
    def role(self) -> str:
        return SHADOW if self.stage == "shadow" else CHALLENGER

    def traffic(self, version: str, now: Traffic) -> Traffic:
        """The traffic as it is, with the release's part in it. The version is the salt: each rollout divides anew."""
        if self.stage == "shadow":
            parts = {"challenger": None, "shadow": Mirror(version=version, share=self.share)}
        else:
            parts = {"challenger": Challenger(version=version, share=self.share, salt=version), "shadow": None}
        return now.model_copy(update=parts)


@dataclass(frozen=True)
class Seen:
    """What replicas tell of a step.

    Attributes:
        replicas: that have divided their traffic so.
        tallies: of all of them together, by role.
        stopped: why a replica gives the release nothing more.
        missing: why a replica could not load it.
    """

    replicas: int
    tallies: Mapping[str, Tally]
    stopped: str = ""
    missing: str = ""


@dataclass(frozen=True)
class Decision:
    """What is to be done, and why."""

    what: Literal["wait", "go_on", "roll_back"]
    reason: str


def decide(plan: RolloutPlan, step: Step, seen: Seen, limits: RolloutLimits, elapsed_s: float) -> Decision:
    """Judge a step.

    Args:
        elapsed_s: since the step began.
    """
    if seen.missing:
        return Decision("roll_back", f"a replica could not load it: {seen.missing}")
    if seen.stopped:
        return Decision("roll_back", seen.stopped)
    champion, release = seen.tallies.get(CHAMPION, Tally()), seen.tallies.get(step.role, Tally())
    wrong = breach(champion, release, limits, compared=step.stage == "shadow")
    if wrong:
        return Decision("roll_back", wrong)
    count = f"{release.requests} answers in {elapsed_s:.0f} s"
    if elapsed_s >= plan.hold_s and release.requests >= plan.least_requests:
        return Decision("go_on", f"good over {count}")
    if elapsed_s >= plan.patience_s:
        return Decision("roll_back", f"too little traffic to judge it: {count}, needed {plan.least_requests}")
    return Decision("wait", count)


def gate_fault(champion: str, version: str, figures: Mapping[str, Any], limits: GateLimits) -> str | None:
    """What of the offline figures stops a release, in words; None when nothing does.

    Args:
        figures: of both, as `serving.works.evaluate.EvaluateWork` tells them.
    """
    releases = figures["releases"]
    old, new = releases[champion], releases[version]
    recall = next(name for name in old["cascade"] if name.startswith("recall@"))
    before, after = old["cascade"][recall], new["cascade"][recall]
    if not after >= before * (1 - limits.recall):  # also when it is not a number
        return f"{recall} {after:.4f}, the champion {before:.4f}; allowed {limits.recall:.0%} less"
    pairs = (("auc", "AUC", -1.0, limits.auc), ("calibration_error", "calibration error", 1.0, limits.calibration))
    for name, words, worse, allowed in pairs:
        before, after = old[name].get("fine"), new[name].get("fine")
        if before is not None and (after is None or not (after - before) * worse <= allowed):
            told = "missing" if after is None else f"{after:.4f}"
            return f"{words} {told}, the champion {before:.4f}; allowed {allowed:g} {'more' if worse > 0 else 'less'}"
    return None
