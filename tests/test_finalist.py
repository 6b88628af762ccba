"""A finalist without a sound ratio and times cannot be made, so none can be stored."""

from __future__ import annotations

import math
from typing import Any

import pytest

from db.records import Finalist

SOUND: dict[str, Any] = {
    "trial_id": 1,
    "rank": 1,
    "ratio": 1.1,
    "ratio_low": 1.05,
    "ratio_high": 1.15,
    "median_us": 10.0,
    "library_us": 11.0,
    "tied": False,
    "winner": True,
    "hot_l2_us": 9.0,
    "eager_us": 20.0,
}


def test_a_sound_finalist() -> None:
    assert Finalist(**SOUND).ratio == 1.1
    assert Finalist(**{**SOUND, "hot_l2_us": None, "eager_us": None}).hot_l2_us is None
    third = 1 / 3
    assert Finalist(**{**SOUND, "ratio": third, "ratio_low": third * (1 + 1e-15), "ratio_high": third}).ratio == third


@pytest.mark.parametrize("figure", ["ratio", "ratio_low", "ratio_high", "median_us", "library_us", "hot_l2_us", "eager_us"])
@pytest.mark.parametrize("value", [0.0, -1.0, -6076.0, math.nan, math.inf])
def test_a_figure_that_is_none(figure: str, value: float) -> None:
    with pytest.raises(ValueError, match="not all above 0 and finite"):
        Finalist(**{**SOUND, figure: value})


@pytest.mark.parametrize("change", [{"rank": 0}, {"ratio": 1.04}, {"ratio": 1.16}, {"ratio_low": 1.2}])
def test_a_place_that_is_none(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="in an interval from"):
        Finalist(**{**SOUND, **change})
