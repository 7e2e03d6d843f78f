"""What HAProxy is told: the variables for Serve, and what is rewritten in the configuration that Serve generates."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
from ray.serve.config import HTTPOptions

from configs.ingress_settings import IngressSettings
from configs.settings import build_settings
from deployments.haproxy import LAUNCHER, haproxy_environment, haproxy_rules, write_launcher
from deployments.haproxy_config import Unexpected, replicas, rewritten
from serving.schemas import MAX_TIMEOUT_MS

STATS, METRICS = 5001, 6001
RULES = haproxy_rules(IngressSettings(max_inflight=7, max_queued=40), STATS, METRICS)


@pytest.fixture
def generated(tmp_path):
    """Serve's own configuration for an app with two replicas and the proxy that stands in when both are gone."""
    return generate(tmp_path, ("r0", "r1"))


def generate(folder: Path, replicas: tuple[str, ...], *others: BackendConfig) -> str:
    """Of the recommender's replicas, and of other applications."""
    servers = [ServerConfig(name=name, host="127.0.0.1", port=30_000 + i) for i, name in enumerate(replicas)]
    fallback = ServerConfig(name="fallback", host="127.0.0.1", port=40_000)
    backend = BackendConfig("http-recpool", "/", servers=servers, app_name="recpool", fallback_server=fallback)
    file = folder / "haproxy.cfg"
    api = HAProxyApi(
        HAProxyConfig(
            http_options=HTTPOptions(host="127.0.0.1", port=8000),
            socket_path=str(folder / "s"),
            server_state_base=str(folder),
            server_state_file=str(folder / "state"),
            stats_port=STATS,
            metrics_port=METRICS,
            metrics_enabled=False,
            timeout_server_s=2,
            retries=3,
        ),
        {each.name: each for each in (*([backend] if replicas else []), *others)},
        config_file_path=str(file),
    )
    api._generate_config_file_internal()
    return file.read_text()


def complaints(folder: Path, config: str) -> str:
    """What HAProxy itself finds wrong; empty when nothing is."""
    file = folder / "checked.cfg"
    file.write_text(config)
    done = subprocess.run([RULES.binary, "-c", "-f", str(file)], capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stderr


@pytest.mark.parametrize("names", [(), ("r0",), ("r0", "r1")])
def test_haproxy_accepts_what_is_written_whatever_runs_behind_it(tmp_path, names):
    written = rewritten(generate(tmp_path, names), RULES)
    assert complaints(tmp_path, written) == ""
    assert complaints(tmp_path, written.replace("timeout queue", "timeout kew"))  # it does look


def test_no_port_is_open_to_other_machines(generated):
    binds = re.findall(r"bind (\S+)", rewritten(generated, RULES))
    assert sorted(binds) == ["127.0.0.1:5001", "127.0.0.1:6001", "127.0.0.1:8000"]


def test_a_hung_replica_is_given_up_just_after_the_longest_deadline(generated):
    waits = [int(ms) for ms in re.findall(r"^ *timeout server (\d+)ms$", rewritten(generated, RULES), re.M)]
    assert len(waits) == 1
    assert MAX_TIMEOUT_MS < waits[0] <= MAX_TIMEOUT_MS + 100


def test_every_replica_is_bounded_and_the_last_resort_is_not(generated):
    servers = re.findall(r"^ *server (\S+) .*?(?:maxconn (\d+) .*mark-down)?$", rewritten(generated, RULES), re.M)
    assert servers == [("r0", "7"), ("r1", "7"), ("fallback", "")]


def test_those_that_stand_by_have_no_weight_and_each_has_a_second_entry_before_the_last_resort(tmp_path):
    config = rewritten(generate(tmp_path, ("gateway-abc", "gateway-def")), replace(RULES, shadows=True), ["def"])
    assert complaints(tmp_path, config) == ""
    servers = re.findall(r"^ *server (\S+) (\S+) .*?(weight 0|backup)?$", config, re.M)
    assert servers == [
        ("gateway-abc", "127.0.0.1:30000", ""),
        ("gateway-abc-standby", "127.0.0.1:30000", "backup"),
        ("gateway-def", "127.0.0.1:30001", "weight 0"),
        ("gateway-def-standby", "127.0.0.1:30001", "backup"),
        ("fallback", "127.0.0.1:40000", "backup"),
    ]
    assert [server.name for server in replicas(config)] == ["gateway-abc", "gateway-def"]


@pytest.mark.parametrize(("count", "shadows", "retries"), [(0, False, 3), (1, False, 4), (5, False, 20), (4, True, 32)])
def test_a_call_may_meet_every_entry_dead_several_times(tmp_path, count, shadows, retries):
    config = rewritten(generate(tmp_path, tuple(f"r{n}" for n in range(count))), replace(RULES, shadows=shadows))
    assert re.findall(r"^ *retries (\d+)$", config, re.M) == [str(retries)]


def test_without_shadows_there_is_one_entry_for_each(generated):
    assert "standby" not in rewritten(generated, RULES)


def test_low_priority_is_refused_first_and_high_last(generated):
    refusals = re.findall(r"return status 429 .* if is_call (.+) \{ queue ge (\d+) \}", rewritten(generated, RULES))
    assert refusals == [("is_low", "10"), ("!is_high !is_low", "40"), ("is_high", "160")]


def test_no_line_is_logged_for_a_request(generated):
    assert "log global" in generated
    assert "log global" not in rewritten(generated, RULES)


def test_rewriting_again_changes_nothing(generated):
    once = rewritten(generated, RULES)
    assert rewritten(once, RULES) == once


@pytest.mark.parametrize("place", ["timeout server", "errorfile 503", f"bind \\*:{STATS}", f"bind :{METRICS}"])
def test_a_template_of_another_kind_is_refused_and_the_place_named(generated, place):
    other = re.sub(place, "# gone", generated)
    with pytest.raises(Unexpected, match=place.split()[1] if place.startswith("bind") else place):
        rewritten(other, RULES)


def test_the_launcher_rewrites_and_then_is_haproxy_under_its_own_process_id(tmp_path, generated):
    """One that is told to take over from a process that is no HAProxy takes over from none."""
    stand_in = tmp_path / "haproxy"
    stand_in.write_text('#!/bin/sh\necho $$ "$@"\n')
    stand_in.chmod(0o755)
    write_launcher(tmp_path, replace(RULES, binary=str(stand_in)))
    config = tmp_path / "haproxy.cfg"
    started = subprocess.Popen(
        [tmp_path / LAUNCHER, "-db", "-f", config, "-sf", "1"], stdout=subprocess.PIPE, text=True
    )
    said = started.communicate()[0].splitlines()[0].split()  # this one ends at once, and its guard starts others
    assert said == [str(started.pid), "-db", "-f", str(config)]
    assert config.read_text() == rewritten(generated, RULES)
    assert os.access(tmp_path / LAUNCHER, os.X_OK)


def test_the_launcher_says_what_it_cannot_do_and_starts_nothing(tmp_path):
    write_launcher(tmp_path, RULES)
    (tmp_path / "haproxy.cfg").write_text("global\n")
    done = subprocess.run([tmp_path / LAUNCHER, "-f", tmp_path / "haproxy.cfg"], capture_output=True, text=True)
    assert done.returncode != 0
    assert "timeout server" in done.stderr


def test_the_proxy_retries_what_failed_on_another_replica():
    variables = haproxy_environment(build_settings({}).ingress, Path("/h"), STATS, METRICS)
    assert {"conn-failure", "empty-response", "response-timeout"} <= set(
        variables["RAY_SERVE_HAPROXY_RETRY_ON"].split()
    )
    assert int(variables["RAY_SERVE_HAPROXY_TIMEOUT_SERVER_S"]) * 1000 > MAX_TIMEOUT_MS


def test_every_haproxy_file_lies_in_our_own_folder():
    variables = haproxy_environment(build_settings({}).ingress, Path("/h/run/hap"), STATS, METRICS)
    paths = [value for value in variables.values() if value.startswith("/")]
    assert len(paths) == 6
    assert all(path.startswith("/h/run/hap") for path in paths)
