"""The service that `make up` brings up, seen from outside: the README's snippets, its OpenAPI document, its answers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

README = Path(__file__).parents[2] / "README.md"
ADDRESS = "http://127.0.0.1:8000"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = FENCE.findall(README.read_text(encoding="utf-8"))
SNIPPETS = [text for language, text in BLOCKS if language == "bash"]


@pytest.fixture(scope="module")
def run(movielens, tmp_path_factory):
    """Run a README snippet the way a reader would, against this module's service."""
    folder = tmp_path_factory.mktemp("reader")
    environment = {**os.environ, **movielens.environment}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"

    def run(snippet: str) -> str:
        script = snippet.replace(ADDRESS, movielens.address)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, f"{snippet}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


@pytest.mark.parametrize("snippet", SNIPPETS, ids=[text.split("\n")[0][:60] for text in SNIPPETS])
def test_readme_snippets_work(run, snippet):
    printed = run(snippet)
    assert printed.strip()
    if snippet.startswith("curl"):
        reply = json.loads(printed)
        refused = '"k": 5000' in snippet
        assert ("error" in reply) == refused
        if refused:
            shown = next(text for language, text in BLOCKS if language == "json")
            assert json.loads(shown) == reply
        else:
            assert reply.get("returned", reply.get("accepted", 0)) > 0


def test_the_readme_names_real_make_targets():
    makefile = (README.parent / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"(?:^|`)make (\w+)", README.read_text(encoding="utf-8"), re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_service_keeps_to_its_openapi_document(movielens, tmp_path):
    """Schemathesis tries examples, boundaries, valid, invalid and chained requests on every route."""
    # A filter, a cursor and the names of features follow rules that JSON Schema cannot state: such a
    # body is valid by the document and still refused with 422.
    words = ["run", f"{movielens.address}/openapi.json", "--exclude-checks", "positive_data_acceptance", "-n", "50"]
    # A workload that is valid by the document is run, and these would be hundreds.
    words += ["--exclude-name", "POST /v1/pool/workloads"]
    # A rollout that is valid is begun. Of a batch each part is refused by itself, with status 200.
    words += ["--exclude-name", "POST /v1/releases/rollout"]
    words += ["--exclude-name", "POST /v1/events", "--exclude-name", "POST /v1/items"]
    command = [Path(sys.executable).parent / "schemathesis", *words]
    # It keeps notes in the folder it runs in.
    done = subprocess.run(command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-5_000:]


def recommend(movielens, **body) -> dict:
    reply = httpx.post(f"{movielens.address}/v1/recommend", json=body, timeout=30)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_a_known_user_gets_a_full_slate_from_all_stages(movielens):
    reply = recommend(movielens, user_id="1m_1", k=20, debug=True, timeout_ms=1_000)
    assert reply["degraded"] == [] and reply["returned"] == 20
    assert {"features", "recall", "coarse", "fine", "post"} <= set(reply["debug"]["timings_ms"])
    assert reply["versions"]["release"] == movielens.release
    scores = [item["score"] for item in reply["items"]]
    assert scores == sorted(scores, reverse=True)


def test_a_cold_user_gets_popular_items_of_their_segment_and_is_flagged(movielens):
    reply = recommend(movielens, user_id="never seen/né", user_features={"age": 25, "gender": "F"}, k=10)
    assert reply["returned"] == 10
    assert {"stage": "features", "reason": "user_unknown"} in reply["degraded"]


def test_pages_do_not_repeat(movielens):
    first = recommend(movielens, user_id="1m_2", k=50)
    second = recommend(movielens, user_id="1m_2", k=50, cursor=first["next_cursor"])
    assert not {i["id"] for i in first["items"]} & {i["id"] for i in second["items"]}


def test_a_narrow_filter_is_answered_exactly(movielens):
    wanted = 'release_year == 1933 and "Horror" in genre'
    reply = recommend(movielens, user_id="1m_3", k=50, filter=wanted, exclude_seen=False)
    assert {i["metadata"]["release_year"] for i in reply["items"]} == {"1933"}
    again = recommend(movielens, k=50, filter=wanted)
    assert {i["id"] for i in again["items"]} == {i["id"] for i in reply["items"]}


def test_similar_items_are_of_a_kind(movielens):
    body = {"item_ids": ["Star Wars: Episode IV - A New Hope (1977)"], "k": 5}
    found = httpx.post(f"{movielens.address}/v1/similar", json=body, timeout=30).json()
    assert any("Star Wars" in item["id"] for item in found["items"])
