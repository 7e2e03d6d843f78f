"""Settings of handles refuse what would make calls wait for ever, storm, or never fail over; by name."""

from __future__ import annotations

import math

import pytest

from configs.errors import ConfigError
from configs.handle_settings import HandleSettings
from configs.settings import build_settings


@pytest.mark.parametrize("field", sorted(HandleSettings.model_fields))
@pytest.mark.parametrize("wrong", [0, -1, math.nan, math.inf, 10**9, "soon", None])
def test_a_value_that_makes_no_sense_is_refused_with_the_name_of_the_field(field, wrong):
    with pytest.raises(ConfigError, match=rf"handles\.{field}"):
        build_settings({"handles": {field: wrong}})


def test_a_hang_is_noticed_within_150_ms_whatever_is_set():
    assert build_settings({"handles": {"hang_ms": 150}}).handles.hang_ms == 150
    with pytest.raises(ConfigError, match=r"handles\.hang_ms"):
        build_settings({"handles": {"hang_ms": 151}})


def test_bounds_of_the_hedge_that_contradict_each_other_are_refused():
    with pytest.raises(ConfigError, match="hedge_min_ms"):
        build_settings({"handles": {"hedge_min_ms": 60, "hedge_max_ms": 50}})
