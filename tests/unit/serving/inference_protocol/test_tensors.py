"""How tensors travel: what comes back is what was sent, and what does not fit its shape or type is refused by name."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from configs.errors import InvalidRequest
from serving.inference_protocol.tensors import NUMPY, InputTensor, TensorLimits, datatype_of, decoded, listed, raw

LIMITS = TensorLimits(elements=1_000)
NUMBERS = sorted(set(NUMPY) - {"BYTES"})


@given(st.data(), st.sampled_from(NUMBERS))
def test_numbers_survive_as_raw_bytes(data, datatype):
    sent = data.draw(npst.arrays(NUMPY[datatype], npst.array_shapes(min_dims=0, max_dims=3, max_side=4)))
    found = decoded(InputTensor("x", datatype, sent.shape, raw(sent)), LIMITS)
    assert found.dtype == sent.dtype and found.shape == sent.shape
    assert found.tobytes() == sent.tobytes()
    assert datatype_of(sent) == datatype


@given(st.lists(st.binary(max_size=20), max_size=8))
def test_strings_lie_as_the_official_client_lays_them(values):
    array = np.array([*values, None], object)[:-1]
    wire = serialize_byte_tensor(array).item() if values else b""
    assert raw(array) == wire
    found = decoded(InputTensor("x", "BYTES", (len(values),), wire), LIMITS)
    assert found.tolist() == values
    assert deserialize_bytes_tensor(raw(found)).tolist() == values


@pytest.mark.parametrize("data", [[1, 2, 3, 4], [[1, 2], [3, 4]]])
def test_json_values_may_be_nested_or_flat(data):
    assert decoded(InputTensor("x", "INT64", (2, 2), data), LIMITS).tolist() == [[1, 2], [3, 4]]


def test_large_integers_are_not_rounded_in_json():
    big = [2**53 + 1, -(2**63), 2**63 - 1]
    assert decoded(InputTensor("x", "INT64", (3,), big), LIMITS).tolist() == big
    assert decoded(InputTensor("x", "UINT64", (1,), [2**64 - 1]), LIMITS).tolist() == [2**64 - 1]


@pytest.mark.parametrize(
    ("datatype", "shape", "data"),
    [
        ("INT32", (2,), [1]),
        ("INT32", (1,), [1.5]),
        ("INT32", (1,), ["1"]),
        ("INT32", (1,), [True]),
        ("INT32", (1,), [None]),
        ("INT32", (1,), [2**31]),
        ("UINT8", (1,), [-1]),
        ("INT64", (1,), [2**63]),
        ("UINT64", (2,), [2**63, -1]),
        ("FP32", (1,), ["1.0"]),
        ("BOOL", (1,), [1]),
        ("FP16", (1,), [1.0]),
        ("BYTES", (1,), [1]),
        ("BYTES", (2,), ["one"]),
        ("INT32", (2, 2), [[1, 2], [3]]),
        ("INT32", (2,), b"\0" * 7),
        ("INT32", (-1,), b"\0" * 4),
        ("INT32", (1_001,), b"\0" * 4_004),
        ("INT32", (2**40, 2**40), b""),
        ("INT32", (1,) * 40, b"\0" * 4),
        ("BYTES", (1,), b"\x05\0\0\0abc"),
        ("BYTES", (1,), b"\x01\0"),
        ("BYTES", (1,), b"\x01\0\0\0ab"),
        ("BYTES", (1,), b"\xff\xff\xff\xffa"),
        ("FP8", (1,), b"\0"),
        ("", (1,), b"\0"),
    ],
)
def test_what_does_not_fit_is_refused_by_the_input_s_name(datatype, shape, data):
    with pytest.raises(InvalidRequest, match="'x'") as told:
        decoded(InputTensor("x", datatype, shape, data), LIMITS)
    assert told.value.field == "x"


def test_lists_may_not_lie_too_deep():
    data: list = ["a"]
    for _ in range(900):
        data = [data]
    for datatype in ("BYTES", "INT32"):
        with pytest.raises(InvalidRequest):
            decoded(InputTensor("x", datatype, (1,), data), LIMITS)


def test_any_byte_but_zero_is_true():
    assert decoded(InputTensor("x", "BOOL", (3,), b"\x00\x01\x02"), LIMITS).tolist() == [False, True, True]


def test_an_empty_tensor_is_a_tensor():
    for data in ([], b""):
        assert decoded(InputTensor("x", "FP32", (0, 3), data), LIMITS).shape == (0, 3)


def test_json_has_no_form_for_half_floats_and_bytes_that_are_no_text():
    with pytest.raises(InvalidRequest, match="binary"):
        listed("y", np.zeros(1, np.float16))
    with pytest.raises(InvalidRequest, match="binary"):
        listed("y", np.array([b"\xff"], object))
    assert listed("y", np.array([b"caf\xc3\xa9"], object)) == ["café"]
