"""A declared workload becomes its work; options it does not know are refused."""

from __future__ import annotations

import pytest

from configs.errors import ConfigError
from pool.workload import WorkloadSpec
from serving.works.evaluate import EvaluateWork
from serving.works.finetune import FinetuneWork
from serving.works.registry import make_work
from serving.works.warmup import WarmupWork


@pytest.fixture
def make(world, trained, home, tmp_path):
    settings = world.make_settings(home)
    if not settings.dataset_folder.exists():
        world.dataset().save(settings.dataset_folder)

    def build(kind: str, version: str | None = None, **options):
        spec = WorkloadSpec(name="w", kind=kind, model="all", version=version, options=options)  # type: ignore[arg-type]
        return make_work(spec, settings, tmp_path)

    return build


def test_each_kind_has_its_work(make):
    finetune = make("finetune", epochs=1, grouping={"tower_users": 4})
    assert isinstance(finetune, FinetuneWork)
    assert finetune.step(2) == 2
    warmup, evaluate = make("warmup", "1", batch_sizes=[2], runs=2), make("evaluate", "1", users=3)
    assert isinstance(warmup, WarmupWork) and warmup.version == "1"
    assert isinstance(evaluate, EvaluateWork) and evaluate.versions == ["1"]
    warmup.close()
    evaluate.close()


@pytest.mark.parametrize(
    ("kind", "known"),
    [("finetune", "epochs.*recompute.*start_from"), ("warmup", "batch_sizes.*runs"), ("evaluate", "most_rows.*users")],
)
def test_an_unknown_option_lists_the_known_ones(make, kind, known):
    with pytest.raises(ConfigError, match=rf"no option \['speed'\] for {kind}; known: .*{known}"):
        make(kind, "1", speed=9)


def test_a_wrong_option_is_named_with_its_place(make):
    with pytest.raises(ConfigError, match=r"grouping\.fine_groups: .*greater than or equal to 1"):
        make("finetune", grouping={"fine_groups": 0})


def test_inference_is_no_work(make):
    with pytest.raises(
        ConfigError, match=r"inference is no work that ends; known: \['evaluate', 'finetune', 'warmup'\]"
    ):
        make("inference")
