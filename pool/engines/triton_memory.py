"""Tensors handed to a Triton server of this machine in shared memory, so that they need not pass through a socket."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import queue
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tritonclient import grpc as triton
from tritonclient.utils import np_to_triton_dtype, shared_memory

log = logging.getLogger("recpool.triton")
KEPT = 4
"""Calls under way at once that have a region; further ones send their tensors by gRPC."""
ALIGNED = 64
"""Bytes: a cache line, which also suits every data type."""
REGISTER_S = 1.0
"""Longest wait for a registration."""
_numbers = itertools.count()

Sizes = Mapping[str, tuple[int, np.dtype]]
"""Bytes and type of each output."""


class Region:
    """One piece of shared memory, known to the server; used by one call at a time."""

    def __init__(self, client: triton.InferenceServerClient, size_bytes: int):
        self.name = f"recpool-{os.getpid()}-{next(_numbers)}"
        self.size_bytes = size_bytes
        self._handle = shared_memory.create_shared_memory_region(self.name, self.name, size_bytes, create_only=True)
        try:
            client.register_system_shared_memory(self.name, self.name, size_bytes, client_timeout=REGISTER_S)
        except BaseException:
            self.close()
            raise

    def put(self, arrays: Mapping[str, np.ndarray]) -> tuple[list[triton.InferInput], int] | None:
        """Write the arrays; the inputs that name their places, and the end of what is taken. None: no room."""
        inputs, at = [], 0
        for name, array in arrays.items():
            if at + array.nbytes > self.size_bytes:
                return None
            shared_memory.set_shared_memory_region(self._handle, [np.ascontiguousarray(array)], offset=at)
            each = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
            each.set_shared_memory(self.name, array.nbytes, offset=at)
            inputs.append(each)
            at += _aligned(array.nbytes)
        return inputs, at

    def places(self, sizes: Sizes, at: int) -> tuple[list[triton.InferRequestedOutput], dict[str, int]] | None:
        """Where outputs of these sizes are to be written, from ``at`` on. None: no room."""
        outputs, places = [], {}
        for name, (size_bytes, _) in sizes.items():
            if at + size_bytes > self.size_bytes:
                return None
            each = triton.InferRequestedOutput(name)
            each.set_shared_memory(self.name, size_bytes, offset=at)
            outputs.append(each)
            places[name] = at
            at += _aligned(size_bytes)
        return outputs, places

    def take(self, dtype: np.dtype, shape: Sequence[int], at: int) -> np.ndarray:
        """A copy of what the server wrote."""
        return np.array(shared_memory.get_contents_as_numpy(self._handle, dtype, list(shape), at))

    def close(self) -> None:
        """The server keeps its own mapping until it ends or forgets the name; nobody reads it any more."""
        with contextlib.suppress(Exception):  # unlinked by somebody else, or a view of it is still alive
            shared_memory.destroy_shared_memory_region(self._handle)


class Regions:
    """Regions that calls share. They are made and unmade by `tend`, on a thread that no caller waits for."""

    def __init__(self, client: triton.InferenceServerClient, size_bytes: int):
        self._client, self._size_bytes = client, size_bytes
        self._free: queue.SimpleQueue[Region] = queue.SimpleQueue()
        self._spoilt: queue.SimpleQueue[Region] = queue.SimpleQueue()
        self._made = 0
        self._is_refused = False

    def borrow(self) -> Region | None:
        """A region for one call, or None; give it back with `free`, or with `spoil` when the call did not end."""
        return _next(self._free)

    def free(self, region: Region) -> None:
        self._free.put(region)

    def spoil(self, region: Region) -> None:
        """The server may still write into it: it is used no more."""
        self._spoilt.put(region)

    def tend(self, is_new: bool = False) -> None:
        """Let go of what is spoilt, and make regions until there are `KEPT`.

        Args:
            is_new: the server was started anew, and knows none of them.
        """
        while is_new and (region := self.borrow()) is not None:
            self.spoil(region)
        while (spoilt := _next(self._spoilt)) is not None:
            self._made -= 1
            with contextlib.suppress(Exception):  # a server that has ended knows no name any more
                self._client.unregister_system_shared_memory(spoilt.name, client_timeout=REGISTER_S)
            spoilt.close()
        self._is_refused = self._is_refused and not is_new
        while self._made < KEPT and not self._is_refused:
            try:
                self._free.put(Region(self._client, self._size_bytes))
                self._made += 1
            except Exception as error:  # a server elsewhere, one that allows none, or memory that is full
                log.info("tensors go to the server by gRPC: %s", error)
                self._is_refused = True


def _next(regions: queue.SimpleQueue[Region]) -> Region | None:
    try:
        return regions.get_nowait()
    except queue.Empty:
        return None


def infer_inputs(arrays: Mapping[str, np.ndarray]) -> list[triton.InferInput]:
    """Inputs that carry their values."""
    inputs = []
    for name, array in arrays.items():
        each = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        each.set_data_from_numpy(np.ascontiguousarray(array))
        inputs.append(each)
    return inputs


def sizes_of(outputs: Mapping[str, np.ndarray]) -> Sizes | None:
    """None where an output's size is not that of its shape alone, as of text."""
    if any(array.dtype.hasobject for array in outputs.values()):
        return None
    return {name: (array.nbytes, array.dtype) for name, array in outputs.items()}


def shape_of(result: Any, name: str) -> list[int]:
    """Of an output that lies in shared memory. Raises KeyError when the answer has none of that name."""
    output = result.get_output(name)
    if output is None:
        raise KeyError(name)
    return list(output.shape)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNED) * ALIGNED
