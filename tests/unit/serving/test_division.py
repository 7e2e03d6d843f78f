"""A service whose traffic is divided, over releases in memory: who is answered by what, and what is counted."""

from __future__ import annotations

import asyncio

import pytest

from configs.errors import ArtifactError, ConfigError, Unavailable
from configs.settings import build_settings
from features.event_log import SqliteEventLog
from serving import residents
from serving.experiments.assignment import is_chosen
from serving.experiments.spec import WHOLE, Traffic
from serving.schemas import RankRequest, RecommendRequest, SimilarRequest
from serving.service import Service
from tests.unit.serving.conftest import ITEMS

USERS = [f"user {n}" for n in range(40)]
UNKNOWN = [{"stage": "features", "reason": "user_unknown"}]
"""The store knows none of them; nothing else is missing in a good answer."""


@pytest.fixture
def settings(tmp_path):
    ranking = {"weights": {"recall": 0.0, "like": 1.0}, "coarse_keep": 20}
    return build_settings({"home": tmp_path, "dataset": "tiny", "ranking": ranking})


@pytest.fixture
async def service(loads, settings):
    service = Service(settings)
    await service.load("1")
    yield service
    await service.close()


def challenger(version: str = "2", share: float = 1.0) -> Traffic:
    return Traffic.model_validate({"challenger": {"version": version, "share": share, "salt": "s"}})


async def ask(service: Service, user: str | None = "u1", **more) -> dict:
    return await service.recommend(RecommendRequest(user_id=user, k=5, timeout_ms=1_000, **more))


def release_of(reply: dict) -> str:
    return reply["versions"]["release"]


async def impressions(service: Service, settings) -> list:
    await asyncio.to_thread(service._impressions.close)
    log = SqliteEventLog(settings.event_log_file)
    found = log.read(0, 1_000)
    log.close()
    return found


async def test_the_share_of_users_gets_the_challenger_and_the_others_do_not(service, settings):
    await service.divide(challenger(share=0.3))
    served = {user: release_of(await ask(service, user)) for user in USERS}
    assert served == {user: "2" if is_chosen(user, "s", 0.3) else "1" for user in USERS}
    assert release_of(await ask(service, None)) == "1"
    chosen = sum(version == "2" for version in served.values())
    tallies = service.division.tallies
    assert (tallies["challenger"].requests, tallies["champion"].requests) == (chosen, len(USERS) - chosen + 1)
    told = {each.user_id: each.payload["part"] for each in await impressions(service, settings)}
    assert {user: part["role"] == "challenger" for user, part in told.items() if user} == {
        user: version == "2" for user, version in served.items()
    }


async def test_a_larger_share_of_the_same_release_loads_nothing(service, releases):
    await service.divide(challenger(share=0.1))
    desk = service.division.sides["challenger"].desk
    await service.divide(challenger(share=0.5))
    assert releases["loaded"] == ["1", "2"]
    assert service.division.sides["challenger"].desk is desk
    assert service.division.tallies["challenger"].requests == 0


async def test_a_challenger_becomes_champion_without_being_loaded_or_warmed_again(service, releases, monkeypatch):
    warmed = []

    async def note(run, release, settings, beside):
        warmed.append(release.version)

    monkeypatch.setattr(residents, "warm_up", note)
    await service.divide(challenger(), warm=True)
    asked = [asyncio.create_task(ask(service, user)) for user in USERS]
    await asyncio.sleep(0)
    await service.load("2", warm=True)
    await service.divide(WHOLE, warm=True)
    assert {(await each)["returned"] for each in asked} == {5}
    assert releases["loaded"] == ["1", "2"] and warmed == ["2"]
    assert {release_of(await ask(service, user)) for user in USERS} == {"2"}


@pytest.mark.parametrize(
    ("breaks", "counted"),
    [
        (lambda releases: releases["stages"]["2"].failing.update(fine=RuntimeError("boom")), "broken"),
        (lambda releases: releases["stages"]["2"].failing.update(recall=ArtifactError("gone")), "broken"),
        (lambda releases: releases["hidden"].update({"2": range(ITEMS)}), "empty"),
    ],
)
async def test_a_challenger_without_a_good_answer_costs_its_users_nothing_but_time(
    service, settings, releases, breaks, counted
):
    breaks(releases)
    await service.divide(challenger())
    replies = [await ask(service, user) for user in USERS[:5]]
    assert [(release_of(reply), reply["returned"], reply["degraded"]) for reply in replies] == [("1", 5, UNKNOWN)] * 5
    tally = service.division.tallies["challenger"]
    assert (tally.requests, getattr(tally, counted)) == (5, 5)
    # What the champion answered instead says nothing of the champion, and is told as what it is.
    assert service.division.tallies["champion"].requests == 0
    assert service.status()["requests"] == 5 and service.status()["errors"] == 0
    found = await impressions(service, settings)
    assert [each.payload["part"] for each in found] == [{"role": "champion", "instead": True}] * 5


async def test_a_challenger_that_is_slow_leaves_time_for_the_champion(service, releases):
    releases["stages"]["2"].delays_s["fine"] = 5.0
    await service.divide(challenger())
    reply = await service.recommend(RecommendRequest(user_id="u1", k=5, timeout_ms=300))
    assert (release_of(reply), reply["returned"], reply["degraded"]) == ("1", 5, UNKNOWN)
    tally = service.division.tallies["challenger"]
    assert tally.requests == tally.broken == 1


async def test_a_slow_challenger_holds_up_nobody_else(service, releases):
    releases["stages"]["2"].delays_s["fine"] = 0.5
    await service.divide(challenger(share=0.5))
    slow = next(user for user in USERS if is_chosen(user, "s", 0.5))
    quick = next(user for user in USERS if not is_chosen(user, "s", 0.5))
    waiting = asyncio.create_task(ask(service, slow))
    await asyncio.sleep(0.01)
    assert release_of(await ask(service, quick)) == "1"
    assert not waiting.done()
    await waiting


async def test_stopping_gives_everything_to_the_champion_at_once(service):
    await service.divide(challenger())
    assert release_of(await ask(service)) == "2"
    service.division.stop("worse")
    service.division.stop("later reason")
    assert release_of(await ask(service)) == "1"
    assert service.division.report("r").stopped == "worse"


async def test_a_release_that_cannot_be_loaded_gets_nothing_and_is_told_of(service, releases):
    releases["refused"]["2"] = Unavailable("release 2 needs 9 GiB")
    await service.divide(challenger())
    assert release_of(await ask(service)) == "1"
    assert service.division.report("r").missing == {"2": "release 2 needs 9 GiB"}


async def settled(service: Service) -> None:
    while service._mirroring._task is not None:
        await asyncio.sleep(0.001)


async def test_a_shadow_is_asked_and_compared_and_nobody_notices(service, settings, releases):
    found = releases["stages"]["1"].count
    releases["hidden"]["2"] = range(found - 2, found)
    await service.divide(Traffic.model_validate({"shadow": {"version": "2"}}))
    for user in USERS[:4]:
        assert release_of(await ask(service, user)) == "1"
        await settled(service)
    await ask(service, dry_run=True)
    tally = service.division.tallies["shadow"]
    # The two items that win at the champion are hidden in the shadow: three of five are common.
    assert (tally.requests, tally.overlap) == (4, pytest.approx(4 * 3 / 5))
    assert service.status()["requests"] == 5
    assert len(service.latencies_ms(60)) == 5
    assert {each.payload["versions"]["release"] for each in await impressions(service, settings)} == {"1"}


async def test_a_shadow_is_asked_a_share_of_the_requests_and_never_two_at_a_time(service, releases):
    releases["stages"]["2"].delays_s["recall"] = 0.2
    await service.divide(Traffic.model_validate({"shadow": {"version": "2", "share": 0.5}}))
    for user in USERS[:8]:
        await ask(service, user)
    tally = service.division.tallies["shadow"]
    assert tally.dropped == 3
    await settled(service)
    assert tally.requests == 1


async def test_a_shadow_that_raises_is_counted_and_harms_nobody(service, releases, monkeypatch):
    await service.divide(Traffic.model_validate({"shadow": {"version": "2"}}))

    def broken(*_):
        raise RuntimeError("no row")

    monkeypatch.setattr("serving.experiments.mirroring.prepare_recommend", broken)
    assert release_of(await ask(service)) == "1"
    await settled(service)
    assert service.division.tallies["shadow"].errors == 1


async def test_an_arm_changes_ranking_for_its_users_and_scene_alone(service, settings, releases):
    """Rank scores an item by its index; with a negative weight the order turns round."""
    arms = [{"name": "as_is", "share": 0.5}, {"name": "turned", "share": 0.5, "ranking": {"weights": {"like": -1.0}}}]
    experiment = {"name": "turn", "salt": "t", "scenes": ["home"], "arms": arms}
    await service.divide(Traffic.model_validate({"experiments": [experiment]}))
    usual = [item["id"] for item in (await ask(service, None, scene="home"))["items"]]
    for user in USERS[:10]:
        turned = [item["id"] for item in (await ask(service, user, scene="home"))["items"]] != usual
        assert turned == (not is_chosen(user, "t", 0.5))
        assert [item["id"] for item in (await ask(service, user, scene="cart"))["items"]] == usual
    parts = [each.payload["part"] for each in await impressions(service, settings) if each.user_id == USERS[0]]
    arm = "as_is" if is_chosen(USERS[0], "t", 0.5) else "turned"
    assert parts == [{"experiment": "turn", "arm": arm}, {}]


async def test_the_first_experiment_that_has_an_arm_for_a_user_has_the_request(service):
    first = {"name": "a", "arms": [{"name": "x", "share": 0.5}]}
    second = {"name": "b", "arms": [{"name": "y", "share": 1.0}]}
    await service.divide(Traffic.model_validate({"experiments": [first, second]}))
    for user in USERS:
        part = service.division.part(user, None)
        assert part.told["experiment"] == ("a" if is_chosen(user, "a", 0.5) else "b")
    assert service.division.part(None).told == {}


async def test_experiments_hold_for_champion_and_challenger(service):
    experiment = {"name": "e", "arms": [{"name": "x", "share": 1.0}]}
    traffic = {"challenger": {"version": "2", "share": 0.5, "salt": "s"}, "experiments": [experiment]}
    await service.divide(Traffic.model_validate(traffic))
    for user in USERS:
        part = service.division.part(user)
        role = "challenger" if is_chosen(user, "s", 0.5) else "champion"
        assert part.told == {"role": role, "experiment": "e", "arm": "x"}
        assert part.live.version == ("2" if role == "challenger" else "1")


@pytest.mark.parametrize(
    ("arm", "said"),
    [
        ({"ranking": {"caps": {"colour": 2}}}, "colour"),
        ({"ranking": {"coarse_keep": 0}}, r"experiments\.e\.a\.ranking\.coarse_keep"),
        ({"recall": {"candidates": 9}}, "recall runs behind a handle"),
    ],
)
async def test_an_arm_that_cannot_be_changes_nothing(service, arm, said):
    await service.divide(challenger())
    experiment = {"name": "e", "arms": [{"name": "a", "share": 1.0, **arm}]}
    with pytest.raises(ConfigError, match=said):
        await service.divide(Traffic.model_validate({"experiments": [experiment]}))
    assert service.division.traffic == challenger()


async def test_rank_and_similar_are_the_champions(service):
    await service.divide(challenger())
    ranked = await service.rank(RankRequest(user_id="u1", item_ids=["item/1 é", "item/9 é"], timeout_ms=1_000))
    assert (release_of(ranked), [item["id"] for item in ranked["items"]]) == ("1", ["item/9 é", "item/1 é"])
    similar = await service.similar(SimilarRequest(item_ids=["item/1 é"], k=3, timeout_ms=1_000))
    assert (release_of(similar), similar["returned"]) == ("1", 3)
