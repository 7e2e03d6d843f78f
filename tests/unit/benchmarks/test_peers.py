"""The peers benchmark: when two answers are the same, how each arm is asked, and what the floors compare."""

from __future__ import annotations

import math
import re

import orjson
import pytest

from benchmarks.peers.__main__ import LIMIT_ALONE, LIMIT_BATCHES, floors
from benchmarks.peers.answers import check, same
from benchmarks.peers.arms import ARMS, FASTAPI, NAIVE, RECPOOL, ROOT, NotMeasured
from benchmarks.peers.environments import COMMON, REQUIREMENTS

PEERS = [arm for arm in ARMS if arm.command is not None]
IDS, SCORES = ["a", "b", "c", "d"], [4.0, 3.0, 2.0, 1.0]
V2 = {
    "outputs": [
        {"name": "scores", "datatype": "FP64", "shape": [1, 4], "data": SCORES},
        {"name": "ids", "datatype": "BYTES", "shape": [1, 4], "data": IDS},
    ]
}
PLAIN = {"ids": IDS, "scores": SCORES}
ITEMS = [{"id": i, "score": s, "source": "ann"} for i, s in zip(IDS, SCORES, strict=True)]
REPLIES = {
    RECPOOL: {"items": ITEMS, "degraded": []},
    FASTAPI: PLAIN,
    "litserve": PLAIN,
    "bentoml": [PLAIN],
    "mlserver": V2,
    "triton": V2,
    NAIVE: PLAIN,
}


def test_answers_are_the_same_up_to_rounding():
    assert same((IDS, SCORES), (IDS, [4.000_01, 3.0, 2.0, 0.999_995]))


@pytest.mark.parametrize(
    ("ids", "scores"),
    [
        (["a", "c", "b", "d"], SCORES),  # another order, though nothing ties
        (["a", "b", "x", "d"], SCORES),  # another item
        (IDS, [4.0, 3.0, 2.0, 1.1]),
        (IDS[:3], SCORES[:3]),
        ([], []),
    ],
)
def test_answers_that_differ_are_not_the_same(ids, scores):
    assert not same((IDS, SCORES), (ids, scores))


def test_items_that_tie_may_change_places():
    tied = [4.0, 3.0, 3.000_001, 1.0]
    assert same((IDS, tied), (["a", "c", "b", "d"], tied))
    assert not same((IDS, tied), (["b", "a", "c", "d"], tied))


def test_the_last_place_may_go_to_an_item_that_ties_with_it_below_the_cut():
    assert same((IDS, SCORES), (["a", "b", "c", "x"], SCORES))
    assert not same((IDS, SCORES), (["a", "b", "c", "x"], [4.0, 3.0, 2.0, 1.01]))


def test_the_first_user_with_another_answer_is_named():
    other = (["a", "b", "x", "d"], SCORES)
    with pytest.raises(NotMeasured, match="user u2"):
        check([(IDS, SCORES)] * 3, [(IDS, SCORES), other, other], ["u1", "u2", "u3"])


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
def test_every_arm_understands_its_own_reply(arm):
    assert arm.understand(orjson.dumps(REPLIES[arm.name])) == (IDS, SCORES)


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
def test_every_request_is_whole_and_names_its_user(arm):
    head, body = arm.request("ü/1", 4).split(b"\r\n\r\n", 1)
    assert head.startswith(f"POST {arm.path} HTTP/1.1\r\n".encode())
    assert f"Content-Length: {len(body)}".encode() in head
    assert "ü/1" in str(orjson.loads(body))


def test_a_degraded_answer_is_none_of_recpools():
    recpool = next(arm for arm in ARMS if arm.name == RECPOOL)
    reply = {"items": ITEMS, "degraded": [{"stage": "fine", "reason": "timeout"}]}
    with pytest.raises(ValueError, match="timeout"):
        recpool.understand(orjson.dumps(reply))


@pytest.mark.parametrize("arm", PEERS, ids=lambda arm: arm.name)
def test_every_peer_has_a_server_and_pins_all_it_installs(arm, tmp_path):
    assert arm.command is not None
    words = arm.command(8123, tmp_path)
    assert "8123" in words
    named = re.search(r"benchmarks\.peers\.servers\.(\w+)", " ".join(words))
    assert named and (ROOT / "benchmarks" / "peers" / "servers" / f"{named[1]}.py").is_file()
    lines = (REQUIREMENTS / f"{arm.name}.txt").read_text().splitlines()
    wanted = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(rf"-r {COMMON}|[\w\[\]-]+==[\w.]+", line) for line in wanted), wanted


def test_floors_compare_recpool_with_every_arm():
    found = {
        RECPOOL: {"per_s": 600.0},
        FASTAPI: {"per_s": 300.0},
        NAIVE: {"per_s": 0.0, "patient_per_s": 20.0},
        "triton": {"failed": "no interpreter"},
        LIMIT_ALONE: {"per_s": 800.0},
        LIMIT_BATCHES: {"per_s": 1_200.0},
    }
    by_name = {floor.name: floor for floor in floors(found)}
    assert by_name["recpool over fastapi"].value == 2.0 and by_name["recpool over fastapi"].floor == 1.3
    assert by_name["recpool over naive-serve"].value == 30.0 and by_name["recpool over naive-serve"].floor == 10.0
    assert by_name[f"recpool over {LIMIT_ALONE}"].value == 0.75 and by_name[f"recpool over {LIMIT_ALONE}"].met
    missing = by_name["recpool over triton"]
    assert math.isnan(missing.value) and missing.floor == 2.0 and not missing.met
