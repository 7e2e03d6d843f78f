"""Models as Prometheus metrics, by the names that Triton gives them, so that its dashboards fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric, UnknownMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from serving.inference_protocol.models import Model

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABELS = ("model", "version")


def _us(part: str) -> Callable[[Model], float]:
    return lambda model: model.statistics.durations[part].ns // 1_000


COUNTERS: tuple[tuple[str, str, Callable[[Model], float]], ...] = (
    ("request_success", "Requests answered.", lambda m: m.statistics.durations["success"].count),
    ("request_failure", "Requests refused or failed.", lambda m: m.statistics.durations["fail"].count),
    ("count", "Rows computed.", lambda m: m.statistics.inferences),
    ("exec_count", "Batches computed.", lambda m: m.statistics.executions),
    ("request_duration_us", "From arrival to answer, of all requests together.", _us("success")),
    ("queue_duration_us", "Of that, waiting for a batch.", _us("queue")),
    ("compute_input_duration_us", "Of that, putting batches together.", _us("compute_input")),
    ("compute_infer_duration_us", "Of that, in the model.", _us("compute_infer")),
    ("compute_output_duration_us", "Of that, taking batches apart.", _us("compute_output")),
)


def metrics_text(models: Sequence[Model]) -> str:
    """Text format 0.0.4, of the models of this process since they were loaded."""
    return generate_latest(_Models(models)).decode()


class _Models(Collector):
    def __init__(self, models: Sequence[Model]):
        self._models = models

    def collect(self) -> Iterator[Metric]:
        for name, text, value in COUNTERS:
            # As a counter it would be given another name.
            family = UnknownMetricFamily(f"nv_inference_{name}", text, labels=LABELS)
            for model in self._models:
                family.add_metric([model.name, model.version], value(model))
            yield family
        waiting = GaugeMetricFamily("nv_inference_pending_request_count", "Requests that wait.", labels=LABELS)
        for model in self._models:
            waiting.add_metric([model.name, model.version], model.batcher.queue)
        yield waiting
