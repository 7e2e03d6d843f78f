"""The gRPC side of the Open Inference Protocol: the service of Triton's clients, on a server of its own.

The messages and the service's description are those that `tritonclient` ships. Errors carry the status codes that
Triton gives them.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc
import grpc.aio
from google.protobuf.json_format import ParseDict
from tritonclient.grpc import service_pb2, service_pb2_grpc

from configs.errors import (
    Conflict,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    OfflineError,
    Overloaded,
    RecpoolError,
    Unavailable,
)
from serving.inference_protocol.dataplane import DataPlane, Unsupported
from serving.inference_protocol.models import InferCall, RequestedOutput
from serving.inference_protocol.tensors import CONTENTS, InputTensor, datatype_of, raw

log = logging.getLogger("recpool.inference")
pb: Any = service_pb2
CODES: tuple[tuple[type[RecpoolError], grpc.StatusCode], ...] = (
    (InvalidRequest, grpc.StatusCode.INVALID_ARGUMENT),
    (NotFound, grpc.StatusCode.NOT_FOUND),
    (Conflict, grpc.StatusCode.ALREADY_EXISTS),
    (Overloaded, grpc.StatusCode.UNAVAILABLE),
    (DeadlineExceeded, grpc.StatusCode.UNAVAILABLE),
    (Unavailable, grpc.StatusCode.UNAVAILABLE),
    (Unsupported, grpc.StatusCode.UNIMPLEMENTED),
)
"""As Triton maps its errors; everything else is INTERNAL."""
Context = grpc.aio.ServicerContext


class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Methods are named by the protocol; those that it knows and we do not have answer UNIMPLEMENTED."""

    def __init__(self, plane: DataPlane):
        self._plane = plane

    async def ServerLive(self, request: Any, context: Context) -> Any:
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Context) -> Any:
        return pb.ServerReadyResponse(ready=self._plane.is_ready)

    async def ModelReady(self, request: Any, context: Context) -> Any:
        async def answer() -> Any:
            return pb.ModelReadyResponse(ready=self._plane.is_model_ready(request.name, request.version))

        return await _guarded(answer, context)

    async def ServerMetadata(self, request: Any, context: Context) -> Any:
        return ParseDict(self._plane.server_metadata(), pb.ServerMetadataResponse())

    async def ModelMetadata(self, request: Any, context: Context) -> Any:
        async def answer() -> Any:
            return ParseDict(self._plane.model_metadata(request.name, request.version), pb.ModelMetadataResponse())

        return await _guarded(answer, context)

    async def ModelConfig(self, request: Any, context: Context) -> Any:
        async def answer() -> Any:
            return pb.ModelConfigResponse(config=self._plane.model_config(request.name, request.version))

        return await _guarded(answer, context)

    async def ModelStatistics(self, request: Any, context: Context) -> Any:
        async def answer() -> Any:
            return ParseDict(self._plane.statistics(request.name, request.version), pb.ModelStatisticsResponse())

        return await _guarded(answer, context)

    async def RepositoryIndex(self, request: Any, context: Context) -> Any:
        return ParseDict({"models": self._plane.index(request.ready)}, pb.RepositoryIndexResponse())

    async def RepositoryModelLoad(self, request: Any, context: Context) -> Any:
        async def answer() -> Any:
            await self._plane.load(request.model_name, dict(request.parameters))
            return pb.RepositoryModelLoadResponse()

        return await _guarded(answer, context)

    async def RepositoryModelUnload(self, request: Any, context: Context) -> Any:
        async def answer() -> Any:
            await self._plane.unload(request.model_name)
            return pb.RepositoryModelUnloadResponse()

        return await _guarded(answer, context)

    async def ModelInfer(self, request: Any, context: Context) -> Any:
        return await _guarded(lambda: self._infer(request), context)

    async def ModelStreamInfer(self, request_iterator: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        """One answer to each request, in their order; an error is told in its place and the stream goes on."""
        async for request in request_iterator:
            try:
                yield pb.ModelStreamInferResponse(infer_response=await self._infer(request))
            except Exception as error:  # the edge between one request of the stream and the others
                answer = pb.ModelStreamInferResponse(error_message=_described(error)[1])
                answer.infer_response.id = request.id
                yield answer

    async def _infer(self, request: Any) -> Any:
        self._plane.registry.model(request.model_name, request.model_version)
        model, outputs = await self._plane.infer(request.model_name, request.model_version, _call(request))
        answer = pb.ModelInferResponse(model_name=model.name, model_version=model.version, id=request.id)
        for name, array in outputs.items():
            answer.outputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
            answer.raw_output_contents.append(raw(array))
        return answer


async def start_server(plane: DataPlane, address: str, max_bytes: int, shares_port: bool) -> grpc.aio.Server:
    """A running server.

    Args:
        address: host and port. shares_port: with other processes of the same service.
    Raises:
        RuntimeError: the port is taken.
    """
    options = [
        ("grpc.max_receive_message_length", max_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", int(shares_port)),
    ]
    server = grpc.aio.server(options=options)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Servicer(plane), server)
    if not server.add_insecure_port(address):
        raise RuntimeError(f"{address} cannot be bound")
    await server.start()
    return server


async def _guarded(answer: Callable[[], Awaitable[Any]], context: Context) -> Any:
    try:
        return await answer()
    except Exception as error:  # the edge of the process: each is told to its caller, or logged
        await context.abort(*_described(error))


def _described(error: Exception) -> tuple[grpc.StatusCode, str]:
    if isinstance(error, RecpoolError) and not isinstance(error, OfflineError):
        code = next((code for kind, code in CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL)
        return code, error.message.encode("utf-8", "replace").decode()
    log.error("a request failed", exc_info=error)
    return grpc.StatusCode.INTERNAL, "an error of the service; its log says which"


def _call(request: Any) -> InferCall:
    """Raises InvalidRequest when the message's parts do not fit together."""
    parameters = request.parameters
    return InferCall(
        id=request.id,
        inputs=tuple(_inputs(request)),
        outputs=tuple(_requested(each) for each in request.outputs),
        priority=_whole(parameters, "priority"),
        timeout_s=_whole(parameters, "timeout") / 1e6 or None,
    )


def _inputs(request: Any) -> list[InputTensor]:
    raws = request.raw_input_contents
    for each in request.inputs:
        if "shared_memory_region" in each.parameters:
            raise InvalidRequest(f"input '{each.name}': shared memory is not supported", each.name)
    if raws and len(raws) != len(request.inputs):
        raise InvalidRequest(
            f"expected {len(request.inputs)} entries of raw_input_contents, one for each input, got {len(raws)}",
            "inputs",
        )
    if raws:
        both = next((each.name for each in request.inputs if each.HasField("contents")), None)
        if both is not None:
            raise InvalidRequest(
                f"contents field must not be specified when using raw_input_contents for '{both}'", both
            )
    data: Sequence[Any] = raws or [_contents(each) for each in request.inputs]
    return [
        InputTensor(each.name, each.datatype, tuple(each.shape), value)
        for each, value in zip(request.inputs, data, strict=True)
    ]


def _contents(tensor: Any) -> list[Any]:
    """The typed list for the tensor's data type; values in another one are refused."""
    wanted = CONTENTS.get(tensor.datatype)
    filled = [field.name for field, _ in tensor.contents.ListFields()]
    wrong = [name for name in filled if name != wanted]
    if wrong:
        raise InvalidRequest(
            f"unexpected explicit tensor data for input tensor '{tensor.name}' of type '{tensor.datatype}': {wrong[0]}",
            tensor.name,
        )
    return list(getattr(tensor.contents, wanted)) if wanted else []


def _requested(output: Any) -> RequestedOutput:
    if "shared_memory_region" in output.parameters:
        raise InvalidRequest(f"output '{output.name}': shared memory is not supported", output.name)
    return RequestedOutput(output.name, _whole(output.parameters, "classification"))


def _whole(parameters: Any, name: str) -> int:
    """A number from 0 that a parameter states; 0 when it is absent."""
    if name not in parameters:
        return 0
    kind = parameters[name].WhichOneof("parameter_choice")
    value = getattr(parameters[name], kind) if kind in ("int64_param", "uint64_param") else -1
    if value < 0:
        raise InvalidRequest(f"parameter '{name}' is not a whole number from 0", f"parameters.{name}")
    return value
