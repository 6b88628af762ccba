"""Schedules and shapes as people mistype them: each text gives a value, which reads back as the same, or one sentence.

pytest --fuzz tries ten times as many, and says of each that it took less than a second.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from search_spaces.errors import UserError
from search_spaces.gpu_files import load_gpu
from search_spaces.plain_text import visible
from search_spaces.problem import Problem, parse_shape
from search_spaces.schedule import parse_schedule
from search_spaces.space import why_not
from tuner.calculations import parse_tile

SCHEDULES = (
    "tma 128x256x64 w8 s3 g8 p1 f1",
    "pointer 16x64x128 w4 s6 k4 r1 x1",
    "gemv 1x4x1024 w4 s1 k2 r2",
    "wgmma 128x192x64 w8 s4 p1 e2 n1 i64 c2 h40 z64",
    "tma 64x64x64 w4 s2 k3 e2 q1 d1",
)
SHAPES = ("4096x4096x4096", "1x2147483647x16", "16X6144x4096")
PIECES = (
    *"0123456789xX wskgpefqrxdnichz+-._,/\\%{}$\t\n\0²٣½⅓四\u202e\ud800é",
    "99999999999999999999",
    "9" * 5000,
    "1e9",
    "0x10",
    "-1",
    "  ",
    "tma",
    "",
)
CUBE, H200 = Problem(m=4096, n=4096, k=4096), load_gpu("h200")


def mutated(texts: tuple[str, ...], count: int, seed: int) -> Iterator[str]:
    """One to three changes each: something put in, left out or exchanged, a word said twice; half of what is put in are digits."""
    draw = random.Random(seed)
    for _ in range(count):
        text = draw.choice(texts)
        for _ in range(draw.randint(1, 3)):
            start, piece = draw.randint(0, len(text)), draw.choice(draw.choice(("0123456789", PIECES)))
            end = min(start + draw.choice((0, 1, 1, 3)), len(text))
            how = draw.random()
            text = text + " " + draw.choice(text.split(" ")) if how < 0.1 else text[:start] + (piece if how < 0.8 else "") + text[end:]
        yield text


def outcomes(texts: Iterator[str], read: Callable[[str], object], fuzz: bool) -> Counter[str]:
    """How many were values and how many sentences. Anything else is raised."""
    found: Counter[str] = Counter()
    for text in texts:
        begin = time.perf_counter()
        try:
            read(text)
            found["value"] += 1
        except UserError as error:
            sentence = str(error)
            assert sentence == visible(sentence), ascii(text)
            assert "\n" not in sentence, ascii(text)
            assert len(sentence) < 500, ascii(text)
            found["sentence"] += 1
        if fuzz:
            assert time.perf_counter() - begin < 1, ascii(text)
    return found


@pytest.fixture
def fuzz(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--fuzz"))


def read_schedule(text: str) -> None:
    schedule = parse_schedule(text)
    assert parse_schedule(str(schedule)) == schedule
    why_not(schedule, CUBE, H200)


def read_shape(text: str) -> None:
    m, n, k = parse_shape(text)
    assert parse_shape(Problem(m=m, n=n, k=k).shape) == (m, n, k)


def read_tile(text: str) -> None:
    tile = parse_tile(text)
    assert tile is None or parse_tile(str(tile)) == tile


def test_schedules(fuzz: bool) -> None:
    count = 20_000 if fuzz else 2_000
    found = outcomes(mutated(SCHEDULES, count, 1), read_schedule, fuzz)
    assert found.total() == count
    assert min(found["value"], found["sentence"]) > count // 20


def test_shapes(fuzz: bool) -> None:
    count = 5_000 if fuzz else 500
    for read in (read_shape, read_tile):
        found = outcomes(mutated(SHAPES, count, 2), read, fuzz)
        assert found.total() == count
        assert min(found["value"], found["sentence"]) > count // 20


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tma 64x64x64 w² s3", "warps of schedule 'tma 64x64x64 w² s3' is '²', which is no whole number"),
        ("tma 64x٣x64 w4", "cta_n of schedule 'tma 64x٣x64 w4' is '٣', which is no whole number"),
        ("tma 64x64x64 w4 s3 w8", "schedule 'tma 64x64x64 w4 s3 w8' gives w, warps, twice; give it once"),
        ("tma 64x64x64 w4 w4", "gives w, warps, twice"),
        ("tma 64x64x64 w4 s3 g8 g16", "gives g, group_m, twice"),
        ("tma 64x64x64x64 w4", "does not begin with a family and a CTA tile"),
        ("tma 64x64x64 w", "warps of schedule 'tma 64x64x64 w' is '', which is no whole number"),
        ("tma 64x64x64 w-4", "is -4; it is a whole number from 0 to 1048576"),
        ("tma 64x64x64 y3", "schedule word 'y3' is not a letter of w, s, k"),
        ("tma\n", "does not begin with a family and a CTA tile"),
        ("tma 64x64x64 w" + "9" * 5000, "it is a whole number from 0 to 1048576"),
        ("\x1b[31m 1x", r"schedule '\x1b[31m 1x' does not begin"),
    ],
)
def test_wrong_schedules(text: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_schedule(text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("64x64", "shape '64x64' is not MxNxK; for example 4096x4096x4096"),
        ("64x²x64", "N of shape '64x²x64' is '²', which is no whole number; give MxNxK"),
        ("64x64x2147483648", "K of shape '64x64x2147483648' is 2147483648; it is a whole number from 0 to 2147483647"),
        ("9" * 5000 + "x1x1", "it is a whole number from 0 to 2147483647"),
        ("1.5x2x3", "M of shape '1.5x2x3' is '1.5', which is no whole number"),
    ],
)
def test_wrong_shapes(text: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_shape(text)
    assert words in str(caught.value)


@pytest.mark.parametrize("text", ["0x1x1", "1x²x1", "1x1", "axbxc", "99999999999x1x1", "1x1x1x1"])
def test_wrong_tiles(text: str) -> None:
    with pytest.raises(UserError, match=r"^tile '"):
        parse_tile(text)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("pointer 64x64x64 w4 s0", "pointer 64x64x64 w4 s0"),
        ("pointer 64x64x64 w0 s2", "pointer 64x64x64 w0 s2"),
        ("pointer 64x64x64", "pointer 64x64x64 w4 s1"),
        ("tma 64x64x64 k0 g0 e0 c0", "tma 64x64x64 w4 s1 k0 g0 e0 c0"),
        ("tma  64x64x64\tg8 s3  w8 k1 p0", "tma 64x64x64 w8 s3 g8"),
    ],
)
def test_what_is_printed_reads_back_as_the_same(text: str, printed: str) -> None:
    schedule = parse_schedule(text)
    assert str(schedule) == printed
    assert parse_schedule(printed) == schedule


def test_a_schedule_without_stages_is_refused() -> None:
    assert why_not(parse_schedule("pointer 64x64x64 w4 s0"), CUBE, H200) == "an axis that counts from 1 is 0"
