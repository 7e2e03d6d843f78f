"""What the benchmarks of events and changes make of the answers they get."""

from __future__ import annotations

import numpy as np
import orjson

from benchmarks.events import acknowledged, calls
from benchmarks.load import Outcomes
from benchmarks.stream import ADD, DELETE, UPDATE, Followed, Seen, delays_ms, wrong_answers


def outcomes(sent_s: list[float], bodies: list[bytes | None]) -> Outcomes:
    made = Outcomes.empty(np.array(sent_s), 100.0, keep_bodies=True)
    made.bodies = bodies
    return made


def reply(*ids: str) -> bytes:
    return b'{"recommendation_id":"r","items":' + orjson.dumps([{"id": i} for i in ids]) + b"}"


def test_a_change_counts_as_seen_from_the_last_answer_on_that_did_not_show_it():
    seen = Seen()
    seen.followed = [
        Followed("a", ADD, "t", made_s=1.0, stale_s=1.25, seen=True),
        Followed("b", UPDATE, "t", made_s=1.0, stale_s=None, seen=True),
        Followed("c", DELETE, "", made_s=1.0, stale_s=2.0, seen=False),
    ]
    assert delays_ms(seen).tolist() == [250.0, 0.0, np.inf]


def test_an_item_counts_as_wrongly_returned_a_second_after_it_was_deleted_and_when_it_comes_twice():
    seen = Seen(deleted={"gone": 105.0})
    bodies = [reply("gone", "a"), reply("gone"), reply("gone", "b", "b"), None, b'{"error":{}}']
    assert wrong_answers(seen, outcomes([4.0, 5.9, 6.1, 7.0, 8.0], bodies)) == (1, 1)


def test_events_count_as_acknowledged_when_an_answer_says_so_of_each():
    results = [
        {"event_id": i, "status": status} for i, status in (("a", "accepted"), ("b", "duplicate"), ("c", "refused"))
    ]
    body = b'{"accepted":1,"results":' + orjson.dumps(results) + b"}"
    assert acknowledged(outcomes([0.0, 1.0, 2.0], [body, None, b'{"error":{}}'])) == ["a", "b"]


def test_every_event_of_a_load_has_an_id_of_its_own():
    bodies = [orjson.loads(call.split(b"\r\n\r\n", 1)[1]) for call in calls("x", 4, 3)]
    ids = [event["event_id"] for body in bodies for event in body["events"]]
    assert len(ids) == len(set(ids)) == 12
