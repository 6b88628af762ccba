"""Spaces from files, enumeration, and schedules as text."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from search_spaces.errors import UserError
from search_spaces.schedule import Schedule, parse_schedule
from search_spaces.space import load_space, parse_space, space_names

SMALL = "pointer: {cta_m: [64, 128], cta_n: [64, 32], cta_k: 32, warps: [4, 8], stages: [2, 3], split_k: [1, 3]}"


def test_enumeration_is_the_plain_product() -> None:
    found = {str(s) for s in parse_space("small", SMALL).enumerate().schedules()}
    wanted = {
        str(Schedule(family="pointer", cta_m=m, cta_n=n, cta_k=32, warps=w, stages=s, split_k=k))
        for m, n, w, s, k in product([64, 128], [64, 32], [4, 8], [2, 3], [1, 3])
    }
    assert found == wanted
    assert parse_space("small", SMALL).size == len(wanted) == 32


@pytest.mark.parametrize("name", space_names())
def test_every_space_enumerates_what_it_says(name: str) -> None:
    space = load_space(name)
    assert len(space.enumerate()) == space.size


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pointer: {cta_q: [1]}", "family pointer has no axis 'cta_q'; it has cta_m"),
        ("gluon: {cta_m: [64]}", "no family named 'gluon'; known: pointer, tma"),
        (
            "pointer: {cta_m: [64], cta_n: [64], cta_k: [x], warps: 4, stages: 2}",
            "pointer.cta_k is \\['x'\\]; give a list of whole numbers",
        ),
        ("pointer: {cta_m: [], cta_n: 64, cta_k: 32, warps: 4, stages: 2}", "pointer.cta_m is \\[\\]"),
        ("pointer: {cta_m: [64], cta_n: 64, cta_k: 32, stages: 2}", "gives no values for warps"),
        ("", "not a mapping"),
        ("[1, 2]", "not a mapping"),
        ("pointer: {cta_m: [64", "is not YAML"),
    ],
)
def test_wrong_spaces(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_space("mine", text)


def test_a_space_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(SMALL)
    assert load_space(str(file)).size == 32
    with pytest.raises(UserError, match="no space file"):
        load_space(str(tmp_path / "other.yaml"))
    with pytest.raises(UserError, match="no space named 'defualt'; known: default"):
        load_space("defualt")


@pytest.mark.parametrize("text", ["tma 128x256x64 w8 s3 g8 p1 f1", "pointer 16x64x128 w4 s6", "tma 64x64x64 w4 s2 k3 e2"])
def test_short_text_round_trips(text: str) -> None:
    assert str(parse_schedule(text)) == text


@pytest.mark.parametrize("text", ["tma", "tma 128x256", "tma 128x256x64 q3", "tma 128x256x64 wx", ""])
def test_wrong_schedule_texts(text: str) -> None:
    with pytest.raises(UserError):
        parse_schedule(text)
