"""From a declared workload to the work that it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from configs.branch import Branch
from configs.errors import ConfigError
from configs.settings import Settings
from pool.work import Work
from pool.workload import WorkloadKind, WorkloadSpec
from serving.works.evaluate import EvaluateWork
from serving.works.finetune import FinetuneWork
from serving.works.options import EvaluateOptions, FinetuneOptions, WarmupOptions
from serving.works.warmup import WarmupWork

Options = TypeVar("Options", bound=Branch)


def _finetune(spec: WorkloadSpec, settings: Settings, folder: Path) -> Work:
    options = read_options(FinetuneOptions, spec, {"start_from": spec.version})
    return FinetuneWork(settings.dataset_folder, settings, options, folder)


def _warmup(spec: WorkloadSpec, settings: Settings, folder: Path) -> Work:
    return WarmupWork(settings, read_options(WarmupOptions, spec, {"version": spec.version}))


def _evaluate(spec: WorkloadSpec, settings: Settings, folder: Path) -> Work:
    given = {"versions": [spec.version]} if spec.version else {}
    return EvaluateWork(settings.dataset_folder, settings, read_options(EvaluateOptions, spec, given))


WORKS: dict[WorkloadKind, Callable[[WorkloadSpec, Settings, Path], Work]] = {
    "finetune": _finetune,
    "warmup": _warmup,
    "evaluate": _evaluate,
}
"""Inference is no work: it has no end, and is served elsewhere."""


def make_work(spec: WorkloadSpec, settings: Settings, folder: Path) -> Work:
    """The work of a workload.

    Args:
        folder: the work's own, for files on the way; checkpoints are best kept on the same file system.
    Raises:
        ConfigError: a kind without a work, or options that it does not know or that are wrong; lists the known
            ones. NotFound, DataError: as the work's own constructor.
    """
    if spec.kind not in WORKS:
        raise ConfigError(f"workload {spec.name}: {spec.kind} is no work that ends; known: {sorted(WORKS)}")
    return WORKS[spec.kind](spec, settings, folder)


def read_options(kind: type[Options], spec: WorkloadSpec, given: Mapping[str, Any]) -> Options:
    """The spec's options over what else it says. Raises ConfigError naming what is wrong, and the known ones."""
    known = sorted(kind.model_fields)
    unknown = sorted(set(spec.options) - set(known))
    if unknown:
        raise ConfigError(f"workload {spec.name}: no option {unknown} for {spec.kind}; known: {known}")
    try:
        return kind.model_validate({**given, **spec.options})
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"workload {spec.name}: {wrong}; known options of {spec.kind}: {known}") from error
