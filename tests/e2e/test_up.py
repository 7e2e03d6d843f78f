"""From a CSV file of two columns to a service that answers, and back to nothing."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from deployments import first_steps
from deployments.cluster import Cluster
from pool.gate.cpu import may_rise
from pool.repository import CHAMPION, ReleaseRepository
from tests.e2e.conftest import replicas


def recommend(service, **body) -> dict:
    reply = httpx.post(f"{service.address}/v1/recommend", json=body, timeout=30)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_up_recommends_to_a_user_of_ones_own_data(service):
    assert service.said["titles"]
    assert len(recommend(service, user_id="пользователь/3", k=5)["items"]) == 5


def test_the_printed_curl_works_as_it_stands(service):
    done = subprocess.run(["sh", "-c", service.said["curl"]], capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout)["items"]


def test_a_second_up_starts_nothing(service, recpool):
    before = replicas(service)
    assert json.loads(recpool("up", "--json").stdout) == service.said
    assert replicas(service) == before


def speaks_http(ip: str, port: int) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        httpx.get(f"http://[{ip}]:{port}/" if ":" in ip else f"http://{ip}:{port}/", timeout=5, trust_env=False)
        return True
    return False


def test_http_without_a_token_is_open_to_this_machine_only(service):
    """Ray's own ports listen wider and want the token; the HTTP of HAProxy and of the replicas has none."""
    members = {process.pid: process for process in service.cluster.members()}
    proxies = {pid for pid, process in members.items() if process.name() == "haproxy"}
    gateways = replicas(service)["gateway"]
    assert proxies and gateways
    for pid in proxies | gateways:
        open_at = {(c.laddr.ip, c.laddr.port) for c in members[pid].net_connections("tcp") if c.status == "LISTEN"}
        doors = {at for at in open_at if speaks_http(*at)}
        assert doors
        assert {ip for ip, _ in doors} == {"127.0.0.1"}
    record = service.cluster.record()
    assert httpx.get(f"{record.dashboard}/api/serve/applications/", timeout=30).status_code in (401, 403)


def test_rays_tools_work_with_the_printed_environment(service):
    record = service.cluster.record()
    script = f". {service.said['environment']} && test $RAY_DASHBOARD_ADDRESS = {record.dashboard} && serve status"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=120)
    assert "RUNNING" in done.stdout, done.stderr


@pytest.mark.skipif(not may_rise(), reason="the kernel lets no process of this user rise again")
def test_what_serves_has_left_the_rank_that_processes_start_at(service):
    serving = (b"ray::ServeReplica:recpool", b"ray::ServeController")
    ranks = {process.pid: os.getpriority(os.PRIO_PROCESS, process.pid) for process in service.cluster.members()}
    titles = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in ranks}
    haproxy = [pid for pid, title in titles.items() if title.split(b"\0")[0].endswith(b"haproxy")]
    at_work = [pid for pid, title in titles.items() if title.startswith(serving)]
    assert len(at_work) >= 2 and haproxy
    assert {ranks[pid] for pid in (*at_work, *haproxy)} == {0}
    started = [ranks[pid] for pid, title in titles.items() if title.startswith((b"ray::IDLE", b"ray::HAProxyManager"))]
    assert started and min(started) >= first_steps.NICE


def test_a_new_release_is_swapped_in_without_restarting_a_replica(service, recpool):
    before = replicas(service)
    version = json.loads(recpool("train", "--json").stdout)["release"]
    assert version != service.release
    assert json.loads(recpool("up", "--json").stdout)["release"] == version
    # More asks than there are gateways: each of them serves it, whichever HAProxy chooses.
    assert len(before["gateway"]) > 1
    assert {recommend(service, k=1)["versions"]["release"] for _ in range(4 * len(before["gateway"]))} == {version}
    assert replicas(service) == before


def test_the_command_line_asks_the_running_service_or_answers_alone(service, recpool):
    served = json.loads(recpool("recommend", "пользователь/3", "--json").stdout)
    alone = json.loads(recpool("recommend", "пользователь/3", "--json", "--local").stdout)
    assert [item["id"] for item in served["items"]] == [item["id"] for item in alone["items"]]


def test_a_taken_port_is_named_and_nothing_is_left(service, recpool, tmp_path, home):
    for name in ("datasets", "releases", "store"):
        (tmp_path / name).symlink_to(home / name)
    done = recpool("up", code=1, RECPOOL_HOME=str(tmp_path))
    assert Cluster(tmp_path).members() == []
    assert "is held by another program" in done.stderr
    assert "RECPOOL_SERVING__PORT" in done.stderr


def test_a_damaged_release_is_refused_by_file_and_the_running_one_stays(service, recpool, home):
    repository = ReleaseRepository(home / "releases" / "mine")
    serving = recommend(service, k=1)["versions"]["release"]
    damaged = "9000"
    shutil.copytree(repository.path(serving), repository.folder / damaged)
    manifest, items = (repository.path(damaged) / name for name in ("manifest.json", "items.parquet"))
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": damaged}))
    items.write_bytes(items.read_bytes()[:-1] + b"!")
    repository.point(CHAMPION, damaged)
    try:
        assert "items.parquet" in recpool("up", code=2).stderr
        assert recommend(service, k=1)["versions"]["release"] == serving
    finally:
        repository.point(CHAMPION, serving)
        shutil.rmtree(repository.folder / damaged)
