"""Whether a release does so badly beside the champion that it must go. Pure.

A rate counts as too high only when so many bad answers would hardly ever come by chance at the rate that is allowed, so
that a single unlucky one condemns nobody.
"""

from __future__ import annotations

from scipy.special import betainc, betaincinv

from configs.release_settings import RolloutLimits
from serving.experiments.tally import Tally

CHANCE = 0.00135
"""Of a wrong verdict at one look, as beyond three standard deviations; small, as somebody looks every second."""


def breach(champion: Tally, release: Tally, limits: RolloutLimits, compared: bool = False) -> str | None:
    """The first rule that the release breaks beside the champion, in words with its figures; None when it is good.

    Args:
        compared: the release's answers were compared with the champion's.
    """
    for name, allowed in (("errors", limits.errors), ("empty", limits.empty), ("broken", limits.broken)):
        told = _rate_breach(
            name, getattr(release, name), release.requests, getattr(champion, name), champion.requests, allowed
        )
        if told:
            return told
    late = _rate_breach(
        f"later than {limits.slo_ms:g} ms or shed", release.late(limits.slo_ms) + release.shed, release.requests,
        champion.late(limits.slo_ms) + champion.shed, champion.requests, limits.late,
    )  # fmt: skip
    return late or _slow(champion, release, limits) or (_unlike(release, limits) if compared else None)


def _rate_breach(what: str, hits: int, of: int, champion_hits: int, champion_of: int, allowed: float) -> str | None:
    """Whether the rate is above what is allowed beyond the upper end of the champion's."""
    usual = highest_rate(champion_hits, champion_of) if champion_hits else 0.0
    if chance(hits, of, allowed + usual) < CHANCE:
        return (
            f"{what}: {hits} of {of} answers, the champion {champion_hits} of {champion_of}; allowed {allowed:.1%} more"
        )
    return None


def _slow(champion: Tally, release: Tally, limits: RolloutLimits) -> str | None:
    if min(sum(champion.buckets), sum(release.buckets)) < limits.least_latencies:
        return None
    usual, found = champion.quantile_ms(0.5), release.quantile_ms(0.5)
    assert usual is not None and found is not None, "there are latencies"
    if found > usual * limits.slower and found > usual + limits.slower_ms:
        return f"slow: median {found:.1f} ms, the champion {usual:.1f} ms; allowed {limits.slower:g} times"
    return None


def _unlike(release: Tally, limits: RolloutLimits) -> str | None:
    compared = release.requests - release.errors
    if compared >= limits.least_latencies and release.overlap / compared < limits.overlap:
        return (
            f"unlike the champion: {release.overlap / compared:.1%} common items over {compared} answers; at least "
            f"{limits.overlap:.1%}"
        )
    return None


def chance(hits: int, of: int, rate: float) -> float:
    """Probability of at least so many hits at a rate. Source: the binomial tail as an incomplete beta function."""
    return float(betainc(hits, of - hits + 1, min(rate, 1.0))) if hits else 1.0


def highest_rate(hits: int, of: int) -> float:
    """The upper end of a rate's confidence interval. Source: Clopper and Pearson 1934."""
    return float(betaincinv(hits + 1, of - hits, 1 - CHANCE)) if hits < of else 1.0
