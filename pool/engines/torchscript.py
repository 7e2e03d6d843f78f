"""TorchScript as an engine. Such a file is a program: load it from a folder that only its owner can write to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from configs.errors import ArtifactError, RecpoolError


class TorchScriptEngine:
    """One loaded TorchScript module on the CPU.

    Args:
        inputs: names of the tensors, in the order in which the module takes them.
        outputs: names of what it returns: one tensor, a tuple in this order, or a mapping by these names.
    Raises:
        ArtifactError: the file is missing or is no module.
    """

    def __init__(self, path: Path, inputs: Sequence[str], outputs: Sequence[str]):
        try:
            self._module = torch.jit.load(str(path), map_location="cpu").eval()
        except Exception as error:  # torch raises classes of its own for each kind of damage
            raise ArtifactError(f"{path}: not a TorchScript module ({str(error):.300})") from error
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)

    @torch.inference_mode()
    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs by name. Raises RecpoolError when the module returns something else than it is said to."""
        # A copy where the array is a view of a request: torch takes no memory that must not be written to.
        given = [torch.from_numpy(np.require(inputs[name], requirements=["C", "W"])) for name in self._inputs]
        found = self._module(*given)
        if isinstance(found, dict):
            found = [found[name] for name in self._outputs if name in found]
        parts = found if isinstance(found, tuple | list) else (found,)
        if len(parts) != len(self._outputs) or not all(isinstance(part, torch.Tensor) for part in parts):
            raise RecpoolError(f"the module returned {len(parts)} values, not the tensors {', '.join(self._outputs)}")
        return {name: part.numpy() for name, part in zip(self._outputs, parts, strict=True)}
