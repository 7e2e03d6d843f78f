"""What Triton's Python backend runs: all requests of a dynamic batch as one call of the funnel."""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from benchmarks.peers.funnel import Funnel


class TritonPythonModel:
    """The name and the methods are the backend's."""

    def initialize(self, args: dict[str, Any]) -> None:
        self._funnel = Funnel.load()

    def execute(self, requests: list[Any]) -> list[Any]:
        given = [pb_utils.get_input_tensor_by_name(request, "user_id").as_numpy() for request in requests]
        ids, scores = self._funnel.recommend([each.decode() for rows in given for each in rows[:, 0]])
        names, values = np.array(ids, object), np.array(scores, np.float32)
        responses, start = [], 0
        for rows in given:
            part = slice(start, start + len(rows))
            start += len(rows)
            tensors = [pb_utils.Tensor("ids", names[part]), pb_utils.Tensor("scores", values[part])]
            responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
        return responses
