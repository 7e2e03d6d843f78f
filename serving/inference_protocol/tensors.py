"""Tensors of the Open Inference Protocol: its data types, and how values travel (JSON, raw bytes, typed lists).

Source: https://github.com/kserve/open-inference-protocol and Triton's binary tensor data extension: raw values lie
in row-major order, little-endian; each element of BYTES follows its length, four bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from configs.errors import InvalidRequest

NUMPY: Mapping[str, np.dtype] = {
    "BOOL": np.dtype(bool),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(object),
}
"""By the protocol's name; elements of BYTES are ``bytes``."""
CONTENTS: Mapping[str, str] = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The field of gRPC's ``InferTensorContents`` for each data type; FP16 has none."""
MOST_AXES = 32
"""numpy's own bound is 64, older ones' 32."""


@dataclass(frozen=True)
class TensorLimits:
    """What one tensor of a request may be; more is refused before memory is taken for it."""

    elements: int


@dataclass(frozen=True)
class InputTensor:
    """An input as it came.

    Attributes:
        data: raw bytes, or a list of values that may be nested like the shape.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: memoryview | bytes | Sequence[Any]


def decoded(tensor: InputTensor, limits: TensorLimits) -> np.ndarray:
    """The values, of the tensor's shape and data type.

    Raises:
        InvalidRequest: type, shape, length or a value is wrong; names the input.
    """
    dtype = checked_type(tensor.name, tensor.datatype)
    count = _checked_count(tensor, limits)
    if isinstance(tensor.data, memoryview | bytes):
        values = _from_raw(tensor, memoryview(tensor.data), dtype, count)
    else:
        values = _from_values(tensor, dtype, count)
    return values.reshape(tensor.shape)


def checked_type(name: str, datatype: str) -> np.dtype:
    """Raises InvalidRequest when there is no such data type, or none that models here take."""
    dtype = NUMPY.get(datatype)
    if dtype is None:
        raise _wrong(name, f"data-type {datatype!r:.40} is none of {', '.join(NUMPY)}")
    return dtype


def _checked_count(tensor: InputTensor, limits: TensorLimits) -> int:
    if any(length < 0 for length in tensor.shape):
        raise _wrong(tensor.name, f"shape {list(tensor.shape)} has a negative length; a request states each length")
    if len(tensor.shape) > MOST_AXES:
        raise _wrong(tensor.name, f"shape has {len(tensor.shape)} axes; at most {MOST_AXES} are taken")
    count = math.prod(tensor.shape)
    if count > limits.elements:
        raise _wrong(
            tensor.name, f"shape {list(tensor.shape)} has {count} elements; at most {limits.elements} are taken"
        )
    return count


def _from_raw(tensor: InputTensor, data: memoryview, dtype: np.dtype, count: int) -> np.ndarray:
    if tensor.datatype == "BYTES":
        return _bytes_array(list(_elements(tensor.name, data, count)), count)
    if len(data) != count * dtype.itemsize:
        raise InvalidRequest(
            f"unexpected total byte size {len(data)} for input '{tensor.name}', expecting {count * dtype.itemsize}",
            tensor.name,
        )
    if tensor.datatype == "BOOL":  # any byte but 0 is true
        return np.frombuffer(data, np.uint8).astype(bool)
    return np.frombuffer(data, dtype)


def _elements(name: str, data: memoryview, count: int) -> Iterator[bytes]:
    at = 0
    for number in range(count):
        if at + 4 > len(data):
            raise _wrong(name, f"unexpected number of string elements {number}, expecting {count}")
        (length,) = struct.unpack_from("<I", data, at)
        at += 4
        if length > len(data) - at:
            raise _wrong(name, f"incomplete string data: element {number} has {len(data) - at} of {length} bytes")
        yield bytes(data[at : at + length])
        at += length
    if at != len(data):
        raise _wrong(name, f"{len(data) - at} bytes follow the {count} string elements that its shape has")


def _from_values(tensor: InputTensor, dtype: np.dtype, count: int) -> np.ndarray:
    if tensor.datatype == "FP16":
        raise InvalidRequest(
            f"sending FP16 data via JSON or contents is not supported; send input '{tensor.name}' as binary data",
            tensor.name,
        )
    if tensor.datatype == "BYTES":
        values = _bytes_array([_text(tensor.name, each) for each in _flat(tensor.name, tensor.data)], None)
    else:
        values = _numbers(tensor, dtype)
    if values.size != count:
        raise InvalidRequest(
            f"unable to parse 'data' of input '{tensor.name}': it has {values.size} values, its shape "
            f"{list(tensor.shape)} expects {count}",
            tensor.name,
        )
    return values


def _numbers(tensor: InputTensor, dtype: np.dtype) -> np.ndarray:
    """Values of the kind that the type wants: numpy alone would take "5" for 5, and 0.5 for 0."""
    try:
        given = np.asarray(tensor.data)
    except (ValueError, OverflowError):  # lists of unlike lengths; an integer beyond every type
        raise _wrong(tensor.name, "unable to parse 'data': lists of unlike length, or a number out of range") from None
    if not given.size:
        return np.zeros(0, dtype)
    kinds = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}[dtype.kind]
    if given.dtype.kind not in kinds:
        raise _wrong(tensor.name, f"unable to parse 'data': not all values are of type {tensor.datatype}")
    if dtype.kind in "iu":
        range_ = np.iinfo(dtype)
        low, high = int(given.min()), int(given.max())
        if low < range_.min or high > range_.max:
            raise _wrong(tensor.name, f"a value is out of the range of {tensor.datatype}: {low} to {high}")
    return given.astype(dtype)


def _flat(name: str, values: Sequence[Any], depth: int = 1) -> Iterator[Any]:
    if depth > MOST_AXES:
        raise _wrong(name, f"unable to parse 'data': lists lie more than {MOST_AXES} deep")
    for value in values:
        if isinstance(value, list):
            yield from _flat(name, value, depth + 1)
        else:
            yield value


def _text(name: str, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise _wrong(name, "unable to parse 'data': not all values are strings")
    return value.encode()


def _bytes_array(values: Sequence[bytes], count: int | None) -> np.ndarray:
    array = np.empty(len(values) if count is None else count, object)
    array[:] = values
    return array


def raw(array: np.ndarray) -> bytes:
    """Values as the binary extension sends them."""
    if array.dtype != object:
        return np.ascontiguousarray(array).tobytes()
    parts = []
    for value in array.ravel():
        text = value if isinstance(value, bytes) else str(value).encode()
        parts += (struct.pack("<I", len(text)), text)
    return b"".join(parts)


def listed(name: str, array: np.ndarray) -> list[Any]:
    """Values for JSON, in row-major order.

    Raises:
        InvalidRequest: JSON has no form for them; says how to ask for them.
    """
    if array.dtype == np.float16:
        raise InvalidRequest(
            f"sending FP16 data via JSON is not supported; request output '{name}' as binary data", name
        )
    if array.dtype != object:
        return array.ravel().tolist()
    try:
        return [value.decode() if isinstance(value, bytes) else str(value) for value in array.ravel()]
    except UnicodeDecodeError:
        raise InvalidRequest(f"output '{name}' is not UTF-8; request it as binary data", name) from None


def datatype_of(array: np.ndarray) -> str:
    """The protocol's name for an array's type; arrays of text are BYTES."""
    if array.dtype.kind in "OUS":
        return "BYTES"
    return _NAMES[array.dtype]


_NAMES = {dtype: name for name, dtype in NUMPY.items()}


def _wrong(name: str, message: str) -> InvalidRequest:
    return InvalidRequest(f"input '{name}': {message}", name)
