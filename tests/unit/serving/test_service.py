from __future__ import annotations

import pytest

from configs.errors import Unavailable
from configs.settings import build_settings
from serving.schemas import RecommendRequest
from serving.service import Service


async def test_a_service_without_any_data_starts_and_says_what_is_missing(tmp_path):
    service = Service(build_settings({"home": tmp_path / "nothing here"}))
    await service.start()
    try:
        assert not service.ready
        assert "recpool train" in service.why_not_ready
        assert service.status()["ready"] is False
        with pytest.raises(Unavailable, match="not ready"):
            await service.recommend(RecommendRequest())
    finally:
        await service.close()
