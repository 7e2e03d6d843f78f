from __future__ import annotations

import pytest
from pydantic import ValidationError

from configs.pool_settings import PoolSettings


@pytest.mark.parametrize(
    ("branch", "wrong", "named"),
    [
        ("shares", {"shrink_below": 0.9, "grow_above": 0.9}, "shrink_below"),
        ("breaker", {"first_wait_s": 10, "longest_wait_s": 9}, "first_wait_s"),
        ("movement", {"resume_after_s": 10, "resume_longest_s": 9}, "resume_after_s"),
        ("placement", {"strategy": "best"}, "'measured', 'rule_of_thumb' or 'tier_order'"),
        ("placement", {"usable_milli": 0}, "usable_milli"),
        ("roofline", {"npu": {"gbytes_per_s": 1}}, "npu"),
    ],
)
def test_a_setting_that_would_make_the_pool_flap_or_is_unknown_is_refused_by_its_name(branch, wrong, named):
    with pytest.raises(ValidationError, match=named):
        PoolSettings.model_validate({branch: wrong})


def test_every_kind_of_device_has_its_peak():
    roofline = PoolSettings().roofline
    assert [roofline.peak(kind) for kind in ("cpu", "gpu", "npu")] == [roofline.cpu, roofline.gpu, roofline.npu]
