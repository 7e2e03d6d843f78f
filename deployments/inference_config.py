"""What Serve is told to run for models as a service; plain values, for a process that does not know Serve."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from configs.settings import Settings

APPLICATION = "recpool-inference"
DEPLOYMENT = "inference"
IMPORT_PATH = "deployments.inference:build_inference"
PREFIX = "/v2"


class InferenceArguments(BaseModel):
    """Arguments of `deployments.inference.build_inference`."""

    model_config = ConfigDict(extra="forbid")

    profile: str = Field("default", description="name below configs/profiles, or path of a .yaml file")
    overrides: dict[str, Any] = Field({}, description="settings that win over the profile and the environment")


def inference_applications(settings: Settings, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """The application as ``serve deploy`` takes it; none where the settings want none.

    Args:
        arguments: profile and overrides, as `InferenceArguments` has them.
    """
    if not settings.inference.enabled:
        return []
    return [
        {
            "name": APPLICATION,
            "route_prefix": PREFIX,
            "import_path": IMPORT_PATH,
            "args": arguments,
            "deployments": [{"name": DEPLOYMENT}],
        }
    ]
