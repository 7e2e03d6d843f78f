"""Bodies of the REST side: JSON, with raw tensors behind it where the binary extension is used, and compression."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from configs.errors import InvalidRequest
from serving.inference_protocol.models import LOWEST, InferCall, Model, RequestedOutput
from serving.inference_protocol.tensors import InputTensor, datatype_of, listed, raw

HEADER_LENGTH = "Inference-Header-Content-Length"
SIZE, BINARY, ALL_BINARY = "binary_data_size", "binary_data", "binary_data_output"
WINDOWS = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
PRIORITIES = {"high": 1, "low": LOWEST}
"""By the header X-Priority, for requests that state no level of their own."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)

    name: str = Field(min_length=1, max_length=1_000)
    parameters: dict[str, Any] = {}


class _Input(_Part):
    datatype: str
    shape: list[Annotated[int, Field(ge=-1, lt=1 << 62)]]
    data: Any = None


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)

    id: str = Field("", max_length=1_000)
    parameters: dict[str, Any] = {}
    inputs: list[_Input]
    outputs: list[_Part] = []


class Body:
    """A request's body, and how its answer is to be written.

    Args:
        headers: by lower-case name.
        content: decompressed.
    Raises:
        InvalidRequest: it is no request, or its parts do not fit together; names the field.
    """

    def __init__(self, headers: Mapping[bytes, bytes], content: bytes):
        stated = headers.get(HEADER_LENGTH.lower().encode())
        length = len(content) if stated is None else _length(stated, len(content))
        self._request = _parsed(content[:length])
        self._rest = memoryview(content)[length:]
        self.call = InferCall(
            id=self._request.id,
            inputs=tuple(self._inputs()),
            outputs=tuple(_requested(part) for part in self._request.outputs),
            priority=self._priority(headers),
            timeout_s=_whole(self._request.parameters, "timeout") / 1e6 or None,
        )
        self._binary = {part.name: part.parameters.get(BINARY) for part in self._request.outputs}

    def reply(self, model: Model, outputs: Mapping[str, np.ndarray]) -> tuple[bytes, int | None]:
        """The answer's body, and the length of its JSON where raw tensors follow.

        Raises InvalidRequest when an output has no form in JSON.
        """
        told, parts = [], []
        for name, array in outputs.items():
            tensor = {"name": name, "datatype": datatype_of(array), "shape": list(array.shape)}
            if self._is_binary(name):
                parts.append(raw(array))
                told.append({**tensor, "parameters": {SIZE: len(parts[-1])}})
            else:
                told.append({**tensor, "data": listed(name, array)})
        answer = {"model_name": model.name, "model_version": model.version, "outputs": told}
        if self.call.id:
            answer["id"] = self.call.id
        # JSON has no NaN and no infinity; Triton and its clients write and read them as words all the same.
        finite = all(array.dtype.kind != "f" or np.isfinite(array).all() for array in outputs.values())
        header = orjson.dumps(answer) if finite else json.dumps(answer, separators=(",", ":")).encode()
        return b"".join((header, *parts)), len(header) if parts else None

    def _is_binary(self, name: str) -> bool:
        stated = self._binary.get(name)
        return bool(self._request.parameters.get(ALL_BINARY)) if stated is None else bool(stated)

    def _inputs(self) -> list[InputTensor]:
        found, at = [], 0
        for part in self._request.inputs:
            data: Any = part.data
            if SIZE in part.parameters:
                size = _whole(part.parameters, SIZE)
                if data is not None or size > len(self._rest) - at:
                    left = len(self._rest) - at
                    said = "both data and binary data" if data is not None else f"{size} bytes, and {left} are left"
                    raise InvalidRequest(f"unexpected size of binary data for input '{part.name}': {said}", part.name)
                data, at = self._rest[at : at + size], at + size
            elif "shared_memory_region" in part.parameters:
                raise InvalidRequest(f"input '{part.name}': shared memory is not supported", part.name)
            elif not isinstance(data, list):
                raise InvalidRequest(f"must specify 'data' of input '{part.name}' as a list", part.name)
            found.append(InputTensor(part.name, part.datatype, tuple(part.shape), data))
        if at != len(self._rest):
            raise InvalidRequest(f"unexpected additional input data: {len(self._rest) - at} bytes at the end", "inputs")
        return found

    def _priority(self, headers: Mapping[bytes, bytes]) -> int:
        stated = _whole(self._request.parameters, "priority")
        return stated or PRIORITIES.get(headers.get(b"x-priority", b"").decode("latin-1"), 0)


def decompressed(content: bytes, encoding: str, most: int) -> bytes:
    """Raises InvalidRequest when it is not compressed so, or would be larger than ``most`` bytes."""
    if encoding in ("", "identity"):
        return content
    if encoding not in WINDOWS:
        raise InvalidRequest(f"Content-Encoding: {encoding!r:.40} is none of gzip, deflate", "Content-Encoding")
    machine = zlib.decompressobj(WINDOWS[encoding])
    try:
        found = machine.decompress(content, most + 1)
    except zlib.error as error:
        raise InvalidRequest(f"body: not {encoding}: {error}", "body") from None
    if len(found) > most:
        raise InvalidRequest(f"body: larger than {most} bytes when decompressed", "body")
    if not machine.eof:
        raise InvalidRequest(f"body: its {encoding} data ends too early", "body")
    return found


def compressed(content: bytes, accepted: str) -> tuple[bytes, str]:
    """The content as the caller accepts it, and the name of its encoding; empty: as it was."""
    names = {each.partition(";")[0].strip() for each in accepted.split(",")}
    if "gzip" in names:
        return gzip.compress(content, 1), "gzip"
    if "deflate" in names:
        return zlib.compress(content, 1), "deflate"
    return content, ""


def parsed_object(content: bytes) -> dict[str, Any]:
    """A JSON object; an empty body is an empty one. Raises InvalidRequest."""
    if not content.strip():
        return {}
    try:
        found = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"failed to parse the request JSON buffer: {error}", "body") from None
    if not isinstance(found, dict):
        raise InvalidRequest("body: must be a JSON object", "body")
    return found


def _parsed(content: bytes) -> _Request:
    try:
        return _Request.model_validate(parsed_object(content))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise InvalidRequest(f"failed to parse the request: {field}: {first['msg']}", field) from None


def _requested(part: _Part) -> RequestedOutput:
    if "shared_memory_region" in part.parameters:
        raise InvalidRequest(f"output '{part.name}': shared memory is not supported", part.name)
    return RequestedOutput(part.name, _whole(part.parameters, "classification"))


def _length(stated: bytes, most: int) -> int:
    if not stated.isdigit() or int(stated) > most:
        raise InvalidRequest(
            f"{HEADER_LENGTH}: {stated.decode('latin-1')!r:.40} is not a length within the body's {most} bytes",
            HEADER_LENGTH,
        )
    return int(stated)


def _whole(parameters: Mapping[str, Any], name: str) -> int:
    """A number from 0 that a parameter states; 0 when it is absent."""
    value = parameters.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise InvalidRequest(f"parameter '{name}': {value!r:.60} is not a whole number from 0", f"parameters.{name}")
    return value
