"""ONNX Runtime as an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort

from configs.errors import ArtifactError, ConfigError

PROVIDERS = {
    "cpu": ("CPUExecutionProvider",),
    "gpu": ("CUDAExecutionProvider", "CPUExecutionProvider"),
    "npu": ("CANNExecutionProvider", "CPUExecutionProvider"),
}
"""Execution providers by tier: the first runs the model, the second whatever operators the first lacks."""


class OnnxEngine:
    """One loaded ONNX model.

    Args:
        path: the model file.
        threads: cores one call may use; more than the slice has slows its neighbours.
        tier: where to run; see `PROVIDERS`.
    Raises:
        ArtifactError: the file is missing or is no model.
        ConfigError: this build of ONNX Runtime cannot run on the tier; a slice of an accelerator must not
            be held by a model that runs on the CPU.
    """

    def __init__(self, path: Path, threads: int = 1, tier: str = "cpu"):
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Spinning workers would take the core from other replicas between calls.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        wanted, available = PROVIDERS[tier], ort.get_available_providers()
        if wanted[0] not in available:
            raise ConfigError(
                f"tier {tier} needs ONNX Runtime's {wanted[0]}, this build has {available}; "
                f"install the build for it, or leave {tier} out of the stage's tier list"
            )
        try:
            self._session = ort.InferenceSession(str(path), options, providers=list(wanted))
        except Exception as error:  # the runtime raises its own pybind classes for each kind of bad file
            raise ArtifactError(f"{path}: not a model ONNX Runtime can load ({error})") from error
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        self.input_types = {node.name: node.type for node in inputs}
        self.output_names = [node.name for node in outputs]
        self.output_types = {node.name: node.type for node in outputs}
        self.shapes = {node.name: _shape(node.shape) for node in (*inputs, *outputs)}
        """Of inputs and outputs, by name; a free axis is -1."""

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs by name; inputs that the model does not declare are ignored."""
        outputs = self._session.run(self.output_names, {name: inputs[name] for name in self.input_types})
        return dict(zip(self.output_names, outputs, strict=True))  # type: ignore[arg-type]


def _shape(declared: Sequence[int | str | None]) -> tuple[int, ...]:
    """A free axis has a name, or nothing; so has one that nothing is known of."""
    return tuple(length if isinstance(length, int) else -1 for length in declared or ())
