from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson
import pytest

from configs.errors import Unavailable
from deployments.budget import ABOUT, measure

TIMINGS = {
    "queue": 0.5, "features": 1.0, "recall": 3.0, "recall.tower": 1.0, "coarse": 0.5, "fine": 2.0, "post": 0.25
}  # fmt: skip


@pytest.fixture
def service():
    """A service whose replies say that its stages took `TIMINGS` and all of it 8 ms; give it a reply to change that."""
    reply = {"degraded": [], "took_ms": 8.0, "debug": {"timings_ms": TIMINGS}}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            body = orjson.dumps(reply)
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", reply
    server.shutdown()
    thread.join()
    server.server_close()


def test_what_the_service_says_is_taken_from_its_replies_and_the_rest_is_reply_and_http(service):
    found = measure(service[0], ["u"], 5)
    assert list(found.parts_ms) == list(ABOUT)
    assert {name: found.parts_ms[name] for name in TIMINGS if "." not in name} == {
        name: ms for name, ms in TIMINGS.items() if "." not in name
    }
    assert found.parts_ms["reply"] == pytest.approx(8.0 - 7.25)
    assert found.recall_ms == {"tower": 1.0}
    assert found.total_ms == pytest.approx(sum(found.parts_ms.values()))


def test_the_largest_part_is_explained(service):
    service[1]["debug"] = {"timings_ms": {**TIMINGS, "fine": 5_000.0}}
    service[1]["took_ms"] = 5_100.0
    lines = measure(service[0], ["u"], 3).lines()
    assert "fine" in lines[-1]
    assert ABOUT["fine"] in lines[-1]


def test_a_degraded_answer_is_not_measured(service):
    service[1]["degraded"] = [{"stage": "fine", "reason": "timeout"}]
    with pytest.raises(Unavailable, match="degraded"):
        measure(service[0], ["u"], 3)


def test_without_a_service_the_remedy_is_named():
    with pytest.raises(Unavailable, match="recpool up"):
        measure("http://127.0.0.1:9", ["u"], 1)
