"""The settings tree: read once, frozen, unknown names refused. Each object is given only its own branch.

What the command line states wins over the environment (``RECPOOL_SERVING__PORT=8001`` sets
``serving.port``), that over the profile (YAML), and that over the defaults; entry by entry, also
inside mappings such as ``ranking.weights``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from configs.autoscale_settings import AutoscaleSettings
from configs.branch import Branch
from configs.errors import ConfigError
from configs.event_settings import EventSettings
from configs.forecast_settings import ForecastSettings
from configs.handle_settings import HandleSettings
from configs.inference_settings import InferenceSettings
from configs.ingress_settings import IngressSettings
from configs.layers import merged, stated_by
from configs.overload_settings import OverloadSettings
from configs.plan_settings import STAGES as STAGES
from configs.plan_settings import PlanSettings
from configs.plan_settings import StageName as StageName
from configs.pool_settings import PoolSettings
from configs.release_settings import ReleaseSettings
from configs.triton_settings import TritonSettings
from configs.wrong_settings import wrong_settings

PROFILES = Path(__file__).parent / "profiles"
TEN_YEARS_S = 10 * 365 * 86_400


class StoreSettings(Branch):
    """Where user rows and histories live."""

    kind: Literal["embedded", "redis"] = Field(
        default="embedded", description="embedded: memory-mapped file on this host"
    )
    redis_url: str = Field(default="redis://127.0.0.1:6379/0", description="used when kind is redis")
    ttl_s: float | None = Field(
        default=None, gt=0, le=TEN_YEARS_S, description="seconds after which an untouched row is dropped; absent: never"
    )
    stale_after_s: float | None = Field(
        default=None,
        gt=0,
        le=TEN_YEARS_S,
        description="seconds after which a profile counts as stale and is imputed; absent: never",
    )
    history_limit: int = Field(default=4096, ge=1, le=65_536, description="events kept per user, most recent first")
    timeout_ms: float = Field(default=50, gt=0, le=10_000, description="bound on one store call; later means imputed")


class SourceSettings(Branch):
    """One recall source."""

    quota: int = Field(ge=0, le=10_000, description="candidates this source may contribute; 0 switches it off")
    timeout_ms: float = Field(default=200, gt=0, le=10_000, description="a later answer is dropped and recorded")


SourceName = Literal["ann", "item_to_item", "popular", "fresh"]


def _default_sources() -> dict[SourceName, SourceSettings]:
    quotas: dict[SourceName, int] = {"ann": 300, "item_to_item": 200, "popular": 100, "fresh": 20}
    return {name: SourceSettings(quota=quota) for name, quota in quotas.items()}


class IndexSettings(Branch):
    """The index of item vectors; what is absent follows the catalogue's size when a release is built."""

    factory: str | None = Field(default=None, min_length=1, description="FAISS factory string, such as IVF256,Flat")
    nlist: int | None = Field(default=None, ge=1, le=65_536, description="lists the vectors are divided into")
    nprobe: int | None = Field(
        default=None, ge=1, le=65_536, description="lists visited a query; also for a release built before it was set"
    )
    refine: float | None = Field(
        default=None, ge=0, le=1_000, description="r >= 1 orders r * k finds by their float vectors; 0 or absent: none"
    )


class RecallSettings(Branch):
    """How many candidates recall gives, and from where."""

    candidates: int = Field(default=500, ge=1, le=20_000, description="most candidates kept after the merge")
    sources: dict[SourceName, SourceSettings] = Field(default_factory=_default_sources)
    index: IndexSettings = IndexSettings()
    segment_field: str | None = Field(
        default=None,
        min_length=1,
        description="categorical user field with a popular list for each of its values, made when a release is built; "
        "absent: the first field with few enough values",
    )


Objective = Literal["recall", "engage", "like", "rating"]


class RankingSettings(Branch):
    """How candidates become a slate."""

    coarse_keep: int = Field(default=100, ge=1, le=5_000, description="candidates that fine rank sees")
    engine: Literal["onnx", "torch"] = Field(default="onnx", description="what runs the rankers; onnx is faster on CPU")
    threads: int | None = Field(
        default=None,
        ge=1,
        le=256,
        description="threads one model call may use; absent: the cores of the replica's slice, and 1 outside of one",
    )
    weights: dict[Objective, Annotated[float, Field(ge=-1_000, le=1_000)]] = Field(
        default_factory=lambda: {"recall": 1.0, "engage": 1.0, "like": 0.3, "rating": 0.05},
        description="weight of each objective in the final score; recall is its evidence for an item in standard "
        "deviations, the others are the rankers'; an objective the release lacks is ignored",
    )
    caps: dict[str, Annotated[int, Field(ge=1, le=500)]] = Field(
        default_factory=dict,
        description="most items a slate may hold with one value of an item field, by field name",
    )
    diversity: float = Field(
        default=0.0, ge=0, le=1, description="0 ranks by score alone; higher trades score for unlike neighbours (MMR)"
    )


class ServingSettings(Branch):
    """The HTTP side and its bounds."""

    host: str = Field(default="127.0.0.1", description="loopback unless you put authentication in front")
    port: int = Field(default=8000, ge=1, le=65_535)
    default_k: int = Field(default=10, ge=1, le=500)
    default_timeout_ms: float = Field(default=500, ge=1, le=1_000, description="deadline of a request that states none")
    max_batch_rows: int = Field(default=32, ge=1, le=4_096, description="requests answered as one batch at most")
    lanes: int = Field(
        default=1, ge=1, le=64, description="batches in flight at once; more pays when stages run in other processes"
    )
    max_body_bytes: int = Field(default=2_097_152, ge=1_024, le=67_108_864)


class Settings(Branch):
    """The whole tree."""

    home: Path = Field(default=Path("var"), description="folder of datasets, releases, stores and logs")
    dataset: str = Field(
        default="ml-1m", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="dataset name below home"
    )
    store: StoreSettings = StoreSettings()
    recall: RecallSettings = RecallSettings()
    ranking: RankingSettings = RankingSettings()
    serving: ServingSettings = ServingSettings()
    ingress: IngressSettings = IngressSettings()
    overload: OverloadSettings = OverloadSettings()
    plan: PlanSettings = PlanSettings()
    handles: HandleSettings = HandleSettings()
    pool: PoolSettings = PoolSettings()
    forecast: ForecastSettings = ForecastSettings()
    autoscale: AutoscaleSettings = AutoscaleSettings()
    releases: ReleaseSettings = ReleaseSettings()
    inference: InferenceSettings = InferenceSettings()
    triton: TritonSettings = TritonSettings()
    events: EventSettings = EventSettings()

    @model_validator(mode="after")
    def _scalable(self) -> Self:
        for name, deployment in self.autoscale.deployments.items():
            if deployment.start_s > self.forecast.max_lead_s:
                raise ValueError(
                    f"autoscale.deployments.{name}.start_s: {deployment.start_s:g} is further ahead than "
                    f"forecast.max_lead_s, {self.forecast.max_lead_s:g}; raise that"
                )
        if "gateway" in self.autoscale.deployments and self.plan.gateway.shadows:
            raise ValueError(
                "autoscale.deployments.gateway: copies that stand by are told from the others by a fixed number; set "
                "plan.gateway.shadows to 0"
            )
        return self

    @property
    def models_folder(self) -> Path:
        """The repository of models that are served by the Open Inference Protocol."""
        return self.inference.folder or self.home / "models"

    @property
    def dataset_folder(self) -> Path:
        return self.home / "datasets" / self.dataset

    @property
    def releases_folder(self) -> Path:
        return self.home / "releases" / self.dataset

    @property
    def store_folder(self) -> Path:
        return self.home / "store" / self.dataset

    @property
    def item_changes_file(self) -> Path:
        return self.home / "items" / f"{self.dataset}.sqlite"

    @property
    def event_log_file(self) -> Path:
        return self.home / "events" / f"{self.dataset}.sqlite"


def load_settings(profile: str | Path = "default", overrides: dict[str, Any] | None = None) -> Settings:
    """Read a profile by name (``configs/profiles/<name>.yaml``) or path.

    Args:
        overrides: settings that win over the profile and the environment, as a tree.
    Raises:
        ConfigError: the profile does not exist, or as `build_settings`.
    """
    path = Path(profile) if str(profile).endswith((".yaml", ".yml")) else PROFILES / f"{profile}.yaml"
    if not path.is_file():
        known = sorted(p.stem for p in PROFILES.glob("*.yaml"))
        raise ConfigError(f"no profile {str(profile)!r}; known profiles: {known}, or give a path to a .yaml file")
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML ({error})") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: a profile is a mapping of settings, found {type(raw).__name__}")
    return build_settings(raw, overrides, origin=str(path))


def build_settings(
    profile: dict[str, Any], overrides: dict[str, Any] | None = None, origin: str = "settings"
) -> Settings:
    """The settings of a profile and overrides given as plain values, and of the environment.

    Raises:
        ConfigError: a field is wrong or unknown; names each, the rule, and the variable that is set for it.
    """
    tree = Settings().model_dump()
    for layer in (profile, stated_by(os.environ, Settings), overrides or {}):
        tree = merged(tree, layer)
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"{origin}: {wrong_settings(error, Settings)}") from error
