"""What every branch of the settings tree is: frozen, without unknown names, without NaN or infinity."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Branch(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
