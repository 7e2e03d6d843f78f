from __future__ import annotations

import os
import threading

import pytest
from pydantic import ValidationError

from configs.errors import ArtifactError, InvalidRequest
from pool.policy.latency import LatencyProfile
from pool.profiles import ProfileKey, ProfileStore

KEY = ProfileKey("fine", "gpu", "3")
PROFILE = LatencyProfile(batch_rows=(1, 8), p50_ms=(2.0, 5.5), p99_ms=(3.0, 7.25))


@pytest.fixture
def store(tmp_path):
    return ProfileStore(tmp_path / "profiles")


def test_a_profile_comes_back_as_it_was_measured(store):
    store.put(KEY, PROFILE)
    assert store.get(KEY) == PROFILE
    assert store.keys() == [KEY]


def test_what_was_not_measured_is_absent(store):
    assert store.get(KEY) is None
    assert store.keys() == []
    assert store.profiles("fine", "3") == {}


def test_profiles_of_a_model_by_kind_and_version(store):
    other = LatencyProfile(batch_rows=(4,), p50_ms=(1.0,), p99_ms=(1.0,), emulated=True)
    store.put(KEY, PROFILE)
    store.put(ProfileKey("fine", "npu", "3"), other)
    store.put(ProfileKey("fine", "cpu", "4"), PROFILE)
    store.put(ProfileKey("0a1b2c", "cpu"), PROFILE)
    assert store.profiles("fine", "3") == {"gpu": PROFILE, "npu": other}
    assert store.profiles("0a1b2c") == {"cpu": PROFILE}


def test_names_that_run_into_each_other_stay_apart(store):
    first, second = ProfileKey("a", "cpu", "b.c"), ProfileKey("a.b", "cpu", "c")
    store.put(first, PROFILE)
    assert store.get(second) is None


def test_a_new_measurement_replaces_the_old_one(store):
    store.put(KEY, PROFILE)
    newer = LatencyProfile(batch_rows=(1,), p50_ms=(9.0,), p99_ms=(9.0,))
    store.put(KEY, newer)
    assert store.get(KEY) == newer
    assert [path.name for path in store.folder.iterdir()] == [KEY.file_name]


def test_readers_never_see_half_a_profile(store):
    store.put(KEY, PROFILE)
    writers = [threading.Thread(target=lambda: [store.put(KEY, PROFILE) for _ in range(10)]) for _ in range(3)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert store.get(KEY) == PROFILE
    for writer in writers:
        writer.join()


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", "a b", "a@b", ".hidden", "x" * 81, "ü"])
def test_a_name_that_is_no_file_name_is_refused(name):
    with pytest.raises(InvalidRequest, match="model"):
        ProfileKey(name, "cpu")
    if name:
        with pytest.raises(InvalidRequest, match="version"):
            ProfileKey("fine", "cpu", name)


def test_a_kind_that_there_is_not_is_refused_with_the_known_ones():
    with pytest.raises(InvalidRequest, match="cpu.*gpu.*npu"):
        ProfileKey("fine", "tpu")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"batch_rows": [1]}', b'{"batch_rows": [1], "p50_ms": [2], "p99_ms": [1]}']
)
def test_a_damaged_file_is_refused_with_its_name(store, content):
    store.put(KEY, PROFILE)
    (store.folder / KEY.file_name).write_bytes(content)
    with pytest.raises(ArtifactError, match="(?s)fine@3@gpu.json.*measure again"):
        store.get(KEY)


def test_files_of_others_are_passed_over(store):
    store.put(KEY, PROFILE)
    for name in ("README", "a@b@tpu.json", "a@b@c@cpu.json", ".fine@3@gpu.json.0123"):
        (store.folder / name).write_text("x")
    assert store.keys() == [KEY]


@pytest.mark.parametrize(
    ("sizes", "p50_ms", "p99_ms", "reason"),
    [
        ((), (), (), "batch_rows"),
        ((0, 1), (1, 1), (1, 1), "at least 1"),
        ((2, 2), (1, 1), (1, 1), "rise"),
        ((1, 2), (1,), (1, 1), "equally long"),
        ((1,), (0,), (1,), "above 0"),
        ((1,), (2,), (1,), "at most p99"),
        ((1,), (1,), (float("inf"),), "finite"),
    ],
)
def test_a_measurement_that_cannot_be_is_refused(sizes, p50_ms, p99_ms, reason):
    with pytest.raises(ValidationError, match=reason):
        LatencyProfile(batch_rows=sizes, p50_ms=p50_ms, p99_ms=p99_ms)


def test_the_profiles_measured_longest_ago_are_forgotten(tmp_path):
    store = ProfileStore(tmp_path, most=2)
    keys = [ProfileKey("fine", "gpu", str(number)) for number in (3, 1, 2)]
    for at_s, key in enumerate(keys):
        store.put(key, PROFILE)
        os.utime(tmp_path / key.file_name, (at_s, at_s))
    assert store.keys() == [keys[1], keys[2]]


def test_a_file_that_is_no_profile_is_not_read_to_its_end(store):
    store.put(KEY, PROFILE)
    with (store.folder / KEY.file_name).open("ab") as file:
        file.truncate(1 << 40)  # of holes
    with pytest.raises(ArtifactError, match="measure again"):
        store.get(KEY)
