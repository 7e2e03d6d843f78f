"""A model's configuration: Triton's ``config.pbtxt``, completed from the model's graph, and what is read of it here.

The message is Triton's own (`tritonclient.grpc.model_config_pb2`), so a model repository serves both. Of what it can
say, batching, priorities, instances and version policy are carried out; the rest (ensembles, sequences, warm-up
requests, caches) is refused by name where ignoring it would change answers.

Parameters of ours in ``parameters``: ``share_milli`` (thousandths of a core that the model claims of the pool) and
``slo_ms`` (the p99 that it must stay below).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from tritonclient.grpc import model_config_pb2

from configs.errors import ArtifactError
from serving.inference_protocol.tensors import NUMPY

ModelConfig = Any
"""`model_config_pb2.ModelConfig`; protobuf makes its classes at run time, where no type checker sees them."""
Platform = Literal["onnxruntime_onnx", "pytorch_libtorch"]
FILES: Mapping[Platform, str] = {"onnxruntime_onnx": "model.onnx", "pytorch_libtorch": "model.pt"}
BACKENDS: Mapping[str, Platform] = {"onnxruntime": "onnxruntime_onnx", "pytorch": "pytorch_libtorch"}
UNSUPPORTED = ("ensemble_scheduling", "sequence_batching", "batch_input", "batch_output", "model_repository_agents")
PRIORITY_LEVELS = 3
"""Of a model whose configuration has none: those of the header X-Priority."""
MOST_INSTANCES = 64
TYPES = {f"TYPE_{'STRING' if name == 'BYTES' else name}": name for name in NUMPY}
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")


@dataclass(frozen=True)
class TensorSpec:
    """One input or output as the configuration has it.

    Attributes:
        shape: whole, with the batch axis in front where the model is batched; -1 is free.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    is_optional: bool = False


@dataclass(frozen=True)
class BatchPolicy:
    """How requests are put together.

    Attributes:
        max_rows: of a batch; 0: the model has no batch axis.
        is_dynamic: whether requests of several callers share a batch.
        delay_s: a batch that is not of a preferred size waits so long for further requests.
        levels: of priority; 1 is the most urgent. default_level: of a request that states none.
        timeout_s: longest wait of a request that states none; None: any.
        max_queued: waiting requests from which a further one is refused; 0: no bound of the model's own.
    """

    max_rows: int = 0
    is_dynamic: bool = False
    preferred: tuple[int, ...] = ()
    delay_s: float = 0.0
    levels: int = PRIORITY_LEVELS
    default_level: int = 2
    timeout_s: float | None = None
    max_queued: int = 0


@dataclass(frozen=True)
class ModelSpec:
    """What serving a model takes of its configuration."""

    name: str
    platform: Platform
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batching: BatchPolicy
    instances: int = 1
    share_milli: int | None = None
    slo_ms: float | None = None


def read_config(file: Path | None, name: str) -> ModelConfig:
    """The configuration in a file; an empty one of that name when there is none.

    Raises:
        ArtifactError: it is not a configuration, is of another model, or asks for what is not carried out.
    """
    config: ModelConfig = model_config_pb2.ModelConfig()  # type: ignore[attr-defined]
    if file is not None and file.is_file():
        try:
            text_format.Parse(file.read_text(encoding="utf-8"), config)
        except (text_format.ParseError, UnicodeDecodeError) as error:
            raise ArtifactError(f"model '{name}': config.pbtxt: not a model configuration: {error}") from error
    if config.name not in ("", name):
        raise ArtifactError(
            f"model '{name}': config.pbtxt: name: '{config.name}' is not that of its folder; rename one of them"
        )
    config.name = name
    for field in UNSUPPORTED:
        if is_set(config, field):
            raise ArtifactError(f"model '{name}': {field}: not supported; remove it, or serve the model with Triton")
    return config


def platform_of(config: ModelConfig, files: Sequence[str]) -> Platform:
    """What runs the model, as the configuration says or, when it does not, as its file is called.

    Args:
        files: names of the files of a version.
    Raises:
        ArtifactError: no engine here runs it, or the file's name leads out of its folder.
    """
    platform = config.platform or BACKENDS.get(config.backend, config.backend)
    if not platform:
        platform = next((each for each, file in FILES.items() if file in files), "")
    if platform not in FILES:
        said = f"platform '{platform}'" if platform else f"no platform, and no file {' or '.join(FILES.values())}"
        raise ArtifactError(f"model '{config.name}': {said}; platforms: {', '.join(FILES)}")
    file = config.default_model_filename
    if file and not _FILE_NAME.fullmatch(file):
        raise ArtifactError(f"model '{config.name}': default_model_filename: '{file}' is not the name of a file")
    return cast(Platform, platform)


def spec_of(config: ModelConfig) -> ModelSpec:
    """What is read of a complete configuration.

    Raises:
        ArtifactError: a field is out of its range; names it.
    """
    name, rows = config.name, config.max_batch_size
    if rows < 0:
        raise ArtifactError(f"model '{name}': max_batch_size: {rows} is negative")
    if rows == 0 and is_set(config, "dynamic_batching"):
        raise ArtifactError(f"model '{name}': dynamic_batching: needs a max_batch_size above 0")
    instances = sum(max(1, group.count) for group in config.instance_group) or 1
    if instances > MOST_INSTANCES:
        raise ArtifactError(f"model '{name}': instance_group: {instances} instances; at most {MOST_INSTANCES}")
    return ModelSpec(
        name=name,
        platform=config.platform,
        inputs=tuple(_tensor_spec(name, each, rows) for each in config.input),
        outputs=tuple(_tensor_spec(name, each, rows) for each in config.output),
        batching=_batch_policy(config),
        instances=instances,
        share_milli=_number(config, "share_milli", 1, 64_000),
        slo_ms=_number(config, "slo_ms", 1, 60_000),
    )


def as_json(message: Any) -> dict[str, Any]:
    """Every field of a message under its own name, as Triton's REST side tells it: numbers are numbers."""
    told: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            kind = field.message_type.fields_by_name["value"]
            told[field.name] = {str(key): _plain(kind, value[key]) for key in value}
        elif field.is_repeated:
            told[field.name] = [_plain(field, each) for each in value]
        elif not field.has_presence or message.HasField(field.name):
            told[field.name] = _plain(field, value)
    return told


def _plain(field: FieldDescriptor, value: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return as_json(value)
    if field.type == FieldDescriptor.TYPE_ENUM:
        assert field.enum_type is not None
        return field.enum_type.values_by_number[value].name
    return value


def is_set(config: ModelConfig, field: str) -> bool:
    value = getattr(config, field)
    return config.HasField(field) if hasattr(value, "DESCRIPTOR") else bool(value)


def _tensor_spec(model: str, each: Any, rows: int) -> TensorSpec:
    name = model_config_pb2.DataType.Name(each.data_type)  # type: ignore[attr-defined]
    if name not in TYPES:
        raise ArtifactError(f"model '{model}': tensor '{each.name}': data_type {name} is none of {', '.join(TYPES)}")
    batch = (-1,) if rows else ()
    return TensorSpec(each.name, TYPES[name], (*batch, *each.dims), bool(getattr(each, "optional", False)))


def _batch_policy(config: ModelConfig) -> BatchPolicy:
    batching = config.dynamic_batching
    queue = batching.default_queue_policy
    levels = batching.priority_levels or PRIORITY_LEVELS
    default = batching.default_priority_level or (levels + 1) // 2
    if default > levels:
        raise ArtifactError(f"model '{config.name}': default_priority_level: {default} of {levels} levels")
    preferred = tuple(sorted(batching.preferred_batch_size))
    if preferred and (preferred[0] < 1 or preferred[-1] > config.max_batch_size):
        raise ArtifactError(
            f"model '{config.name}': preferred_batch_size: {list(preferred)} is not within 1 to max_batch_size "
            f"{config.max_batch_size}"
        )
    return BatchPolicy(
        max_rows=config.max_batch_size,
        is_dynamic=is_set(config, "dynamic_batching"),
        preferred=preferred,
        delay_s=batching.max_queue_delay_microseconds / 1e6,
        levels=levels,
        default_level=default,
        timeout_s=queue.default_timeout_microseconds / 1e6 or None,
        max_queued=queue.max_queue_size,
    )


def _number(config: ModelConfig, parameter: str, low: int, high: int) -> int | None:
    if parameter not in config.parameters:
        return None
    text = config.parameters[parameter].string_value
    if not text.isdecimal() or not low <= int(text) <= high:
        raise ArtifactError(
            f"model '{config.name}': parameter {parameter}: '{text}' is not a number from {low} to {high}"
        )
    return int(text)
