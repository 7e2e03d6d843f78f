"""A journal gives back exactly the book it was made from, and a damaged one is refused by name."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import ArtifactError
from pool.device import Device, Topology
from pool.ledger import Ledger
from tests.unit.pool.ledgers import filled


def test_a_journal_gives_back_every_field_of_devices_and_leases():
    gpu = Device("gpu-é", "npu", 1 << 44, Topology("n", "r", "z"), (0, 3), emulated=True, price_per_hour=0.1)
    ledger = Ledger([gpu, Device("cpu-0", "cpu", 0, Topology("n"), price_per_hour=2)])
    ledger.fence(after=41)
    ledger.grant("ranker", "gpu-é", 333, (1 << 44) - 1, 42)
    again = Ledger.from_json(ledger.to_json())
    assert again.devices() == ledger.devices() and again.leases() == ledger.leases() and again.epoch == 42
    assert again.to_json() == ledger.to_json()
    assert again.grant("eval", "cpu-0", 1, 0, 42).id == "42-2"
    assert json.loads(ledger.to_json())["leases"] == [asdict(lease) for lease in ledger.leases()]


@given(st.data())
def test_a_changed_byte_is_found_or_changes_nothing(data):
    content = bytearray(filled().to_json())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] = data.draw(st.integers(0, 255))
    try:
        assert Ledger.from_json(bytes(content)).to_json() == filled().to_json()
    except ArtifactError as error:
        assert "ledger journal" in error.message and "remove it" in error.message


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b'{"format": 1}', b"[" * 10_000])
def test_what_is_no_journal_is_refused_by_name(content):
    with pytest.raises(ArtifactError, match="var/ledger.json"):
        Ledger.from_json(content, source="var/ledger.json")


def test_a_journal_cut_short_is_refused():
    whole = filled().to_json()
    for length in range(0, len(whole), 7):
        with pytest.raises(ArtifactError):
            Ledger.from_json(whole[:length])


def sealed(change: Any) -> bytes:
    """A journal with a true checksum over wrong values: what a wrong writer, not a bad disk, would leave."""
    body = json.loads(filled().to_json())
    del body["sha256"]
    change(body)
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return json.dumps({**body, "sha256": hashlib.sha256(text.encode()).hexdigest()}).encode()


def test_the_checksum_is_the_one_that_is_documented():
    assert Ledger.from_json(sealed(lambda body: None)).to_json() == filled().to_json()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda body: body.update(format=2), "format"),
        (lambda body: body.pop("format"), "format"),
        (lambda body: body.update(epoch=0), "epoch"),
        (lambda body: body.update(epoch=10**15), "epoch"),
        (lambda body: body.update(granted=-1), "granted"),
        (lambda body: body.update(granted=1), "never granted"),
        (lambda body: body.update(colour="red"), "colour"),
        (lambda body: body.pop("leases"), "leases"),
        (lambda body: body["leases"][1].update(milli="500"), r"leases\.1\.milli"),
        (lambda body: body["leases"][1].update(milli=500.0), r"leases\.1\.milli"),
        (lambda body: body["leases"][1].update(milli=601), "does not fit on a"),
        (lambda body: body["leases"][1].update(milli=-1), "milli -1"),
        (lambda body: body["leases"][1].update(memory_bytes=101), "memory_bytes 101"),
        (lambda body: body["leases"][1].update(device="x"), "no device 'x'"),
        (lambda body: body["leases"][1].update(id="1-1"), "claimed twice"),
        (lambda body: body["leases"][1].update(epoch=2), "epoch 2"),
        (lambda body: body["leases"][1].update(colour="red"), r"leases\.1\.colour"),
        (lambda body: body["leases"][1].pop("workload"), r"leases\.1\.workload"),
        (lambda body: body["devices"][1].update(kind="tpu"), r"devices\.1\.kind"),
        (lambda body: body["devices"][1].update(memory_bytes=-1), "device 'b': memory_bytes"),
        (lambda body: body["devices"][1].update(id="a"), "'a' is in the pool already"),
        (lambda body: body["devices"].pop(0), "no device 'a'"),
    ],
)
def test_a_journal_of_a_wrong_book_is_refused_and_says_what_is_wrong(change, named):
    with pytest.raises(ArtifactError, match=named) as error:
        Ledger.from_json(sealed(change))
    assert "remove it and let the controller rebuild" in error.value.message
