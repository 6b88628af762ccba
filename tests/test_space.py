"""Spaces from files and `--axis`, enumeration in pieces and by number, and schedules as text."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.errors import UserError
from search_spaces.families import families
from search_spaces.schedule import AXES, Schedule, parse_schedule
from search_spaces.space import Space, choose_space, load_space, parse_space
from search_spaces.space_files import space_names
from tuner.cli import app

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
        ("gluon: {cta_m: [64]}", "no family named 'gluon'; known: gemv, pointer, tma"),
        (
            "pointer: {cta_m: [64], cta_n: [64], cta_k: [x], warps: 4, stages: 2}",
            "pointer.cta_k is \\['x'\\]; give a list of whole numbers",
        ),
        ("pointer: {cta_m: [], cta_n: 64, cta_k: 32, warps: 4, stages: 2}", "pointer.cta_m is \\[\\]"),
        ("pointer: {cta_m: [64], cta_n: 64, cta_k: 32, stages: 2}", "gives no values for warps"),
        ("tma: {cta_m: [-64], cta_n: 64, cta_k: 64, warps: 4, stages: 2}", "tma.cta_m is -64; give whole numbers from 0 to 1048576"),
        ("tma: {cta_m: 2097152, cta_n: 64, cta_k: 64, warps: 4, stages: 2}", "tma.cta_m is 2097152; give whole numbers from 0"),
        ("tma: {cta_m: 64.0, cta_n: 64, cta_k: 64, warps: 4, stages: 2}", "tma.cta_m is \\[64.0\\]; give a list of whole numbers"),
        ("tma: [64]", "not a mapping of axes at 'tma', but \\[64\\]; give family: {axis: \\[values\\]}, with base: .*off to leave one out"),
        ("tma: {cta_m: 0x40, cta_n: 64, cta_k: 64, warps: 4, stages: 2}", "tma.cta_m is \\['0x40'\\]; give a list of whole numbers"),
        ("tma: {cta_m: [1:4], cta_n: 64, cta_k: 64, warps: 4, stages: 2}", "tma.cta_m is \\['1:4'\\]; give a list of whole numbers"),
        ("tma: {cta_m: 64}\ntma: {cta_m: 32}", "space mine: 'tma' stands twice, on lines 1 and 2; leave one"),
        ("tma: &a {cta_m: 64}", "anchors and aliases such as &a are not read"),
        ("tma: 2026-99-99", "not a mapping of axes at 'tma', but '2026-99-99'"),
        ("tmaa: {cta_m: 64}", "no family named 'tmaa'; known: gemv, pointer, tma.*; did you mean tma\\?"),
        ("tma: {stagse: 4}", "family tma has no axis 'stagse'; it has .*; did you mean stages\\?"),
        ("all: {stagse: 4}", "no family has an axis 'stagse'; known: .*; did you mean stages\\?"),
        ("all: {stages: 4}", "is left with no family"),
        ("base: defualt", "no space named 'defualt'; known: default; did you mean default\\?"),
        ("{base: default, gemv: off, tma: off, wgmma: off, pointer: off}", "is left with no family"),
        ("pointer: off", "'pointer' cannot be left out; there is no base to leave it out of"),
        ("{base: default, ptr: off}", "'ptr' cannot be left out; default has gemv, pointer, tma"),
        ("{base: default, gemv: off, tma: off, wgmma: off, all: {flatten: 1}}", "space mine: no axis flatten in pointer"),
        ("{base: default, tma: {stages: {plus: 4}}}", "tma.stages is {'plus': 4}; give a number, a list of numbers, or {add"),
        ("{base: default, tma: {stages: {add: [x]}}}", "tma.stages is \\['x'\\]; give a list of whole numbers"),
        ("{base: default, tma: {stages: {remove: 9}}}", "there is no stages of 9 to remove; there are 2, 3, 4, 5, 6"),
        ("{base: default, tma: {warps: {remove: [4, 8]}}}", "nothing is left of tma.warps; leave at least one value"),
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
    with pytest.raises(UserError, match=r"cannot read the space file .*other\.yaml: No such file"):
        load_space(str(tmp_path / "other.yaml"))
    with pytest.raises(UserError, match="no space named 'defualt'; known: default, or a YAML file; did you mean default\\?"):
        load_space("defualt")
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"cannot read the space file .*mine\.yaml: not UTF-8 text"):
        load_space(str(file))


DEFAULT = load_space("default").axes


def test_a_file_changes_a_named_space() -> None:
    text = """
    base: default
    tma: {cta_m: [64, 128], stages: 4, group_m: {add: [32, 8]}, split_k: {remove: [3, 5], add: 7}}
    gemv: off
    pointer: off
    wgmma: off
    all: {cta_k: 64, stages: 2}
    """
    changed = {
        "cta_m": (64, 128),
        "cta_k": (64,),
        "stages": (4,),  # a family's own word goes over that for all
        "group_m": (1, 2, 4, 8, 16, 32),
        "split_k": (1, 2, 4, 6, 8, 10, 12, 16, 7),
    }
    assert parse_space("mine", text).axes == {"tma": {**DEFAULT["tma"], **changed}}


def test_all_reaches_the_families_that_have_the_axis() -> None:
    axes = parse_space("mine", "{base: default, all: {flatten: 1, stages: {remove: 6}}}").axes
    assert axes["tma"]["flatten"] == (1,)
    assert "flatten" not in axes["pointer"]
    assert axes["tma"]["stages"] == axes["pointer"]["stages"] == (2, 3, 4, 5)


def test_all_in_a_file_that_stands_alone_and_values_given_twice() -> None:
    text = "{all: {cta_k: 64, warps: 4, stages: 3, group_m: {add: 8}}, tma: {cta_m: [64, 64], cta_n: 128}, pointer: {cta_m: 16, cta_n: 16}}"
    found = {str(s) for s in parse_space("mine", text).enumerate().schedules()}
    assert found == {"tma 64x128x64 w4 s3", "tma 64x128x64 w4 s3 g8", "pointer 16x16x64 w4 s3", "pointer 16x16x64 w4 s3 g8"}


def test_a_base_gains_a_family() -> None:
    text = "{base: default, gemv: off, pointer: off, wgmma: off, tma: {stages: 3}}"
    assert list(parse_space("mine", text).axes) == ["tma"]


def test_axes_on_the_command_line() -> None:
    options = ("cta_m=64,128", "stages=4", "group_m=+32", "split_k=-3,-5", "tma.stages=+6", "tma.flatten=1")
    space = choose_space("default", axes=options)
    pointer = {"cta_m": (64, 128), "stages": (4,), "group_m": (1, 2, 4, 8, 16, 32), "split_k": (1, 2, 4, 6, 8, 10, 12, 16)}
    assert space.axes["pointer"] == {**DEFAULT["pointer"], **pointer}
    assert space.axes["tma"] == {**DEFAULT["tma"], **pointer, "stages": (4, 6), "flatten": (1,)}
    assert space.name == "default with cta_m=64,128 stages=4 group_m=+32 split_k=-3,-5 tma.stages=+6 tma.flatten=1"
    assert choose_space("default", families=("pointer",), axes=("warps=4",)).axes == {"pointer": {**DEFAULT["pointer"], "warps": (4,)}}


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("stages", "--axis 'stages' is no axis and its values; give axis=64,128 for these values"),
        ("stages=", "is no axis and its values"),
        ("stages=four", "'four' is neither numbers nor numbers that all have a sign"),
        ("stages=+2,3", r"'\+2,3' is neither numbers nor"),
        ("stage=2", "no family has an axis 'stage'; known: .*; did you mean stages"),
        ("tmx.stages=2", "no family named 'tmx'; known: gemv, pointer, tma.*; did you mean tma"),
        ("pointer.flatten=1", "family pointer has no axis 'flatten'; it has cta_m"),
        ("stages=-9", "there is no stages of 9 to remove; there are 1, 2, 3, 4, 5, 6"),
        ("warps=-2,-4,-8", "nothing is left of pointer.warps"),
        ("stages=\u0663", "'\u0663' is neither numbers nor numbers that all have a sign"),
        (f"stages={'9' * 5000}", r"stages is 9+\.\.\. \(5000 characters\); it is a whole number from 0 to 1048576"),
        ("stages=-99999999", "stages is 99999999; it is a whole number from 0 to 1048576"),
        ("stages=99999999", "stages is 99999999; it is a whole number from 0 to 1048576"),
    ],
)
def test_wrong_axes_on_the_command_line(option: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        choose_space("default", axes=(option,))


def test_an_axis_of_a_family_that_is_not_searched() -> None:
    with pytest.raises(UserError, match="space default has no family 'tma'; it has pointer"):
        choose_space("default", families=("pointer",), axes=("tma.stages=4",))
    with pytest.raises(UserError, match="no axis flatten in pointer"):
        choose_space("default", families=("pointer",), axes=("flatten=1",))


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    """Few values of each axis, sensible ones and others, of one or both families."""
    chosen = draw(st.lists(st.sampled_from(sorted(families())), min_size=1, unique=True))
    values = {
        "cta_m": (16, 48, 64, 128, 256),
        "cta_n": (8, 32, 64, 128, 256),
        "cta_k": (16, 32, 64, 128),
        "warps": (1, 3, 4, 8),
        "stages": (0, 1, 2, 4, 7),
        "split_k": (1, 2, 3, 8),
        "group_m": (1, 4, 5, 8),
        "persistent_ctas_per_sm": (0, 1, 2),
        "epilogue_subtile": (1, 2, 3),
        "flatten": (0, 1, 2),
        "stream_k": (0, 1),
        "fused_reduction": (0, 1),
        "swap_ab": (0, 1),
        "pad": (0, 1),
        "warps_n": (1, 2),
        "instruction_n": (0, 64),
        "consumers": (1, 2),
        "producer_registers": (0, 40),
        "swizzle_bytes": (0, 64),
    }
    pick = {axis: st.lists(st.sampled_from(some), min_size=1, max_size=2, unique=True).map(tuple) for axis, some in values.items()}
    return Space("drawn", {name: {axis: draw(pick[axis]) for axis in families()[name].axes} for name in chosen})


@settings(max_examples=50, deadline=None)
@given(spaces(), st.integers(8, 400))
def test_grids_in_turn_are_the_whole_product(space: Space, most: int) -> None:
    grids = list(space.grids(most))
    assert [s for grid in grids for s in grid.take(slice(None)).schedules()] == space.enumerate().schedules()
    assert max(len(grid) for grid in grids) <= most
    last = grids[-1]
    assert last.schedule(len(last) - 1) == space.enumerate().schedule(space.size - 1)


@settings(max_examples=50, deadline=None)
@given(spaces(), st.data())
def test_any_rows_are_made_without_the_others(space: Space, data: st.DataObject) -> None:
    numbers = sorted(data.draw(st.sets(st.integers(0, space.size - 1), max_size=20)))
    every = space.enumerate()
    assert space.rows(np.array(numbers, dtype=np.int64)).schedules() == [every.schedule(number) for number in numbers]
    assert all(space.holds(every.schedule(number)) for number in numbers)


def test_what_a_space_holds() -> None:
    space = parse_space("small", SMALL)
    assert space.holds(parse_schedule("pointer 64x64x32 w4 s2 k3"))
    assert not space.holds(parse_schedule("pointer 64x64x32 w4 s2 k3 g8"))
    assert not space.holds(parse_schedule("tma 64x64x32 w4 s2 k3"))


def test_a_sample_is_uniform_different_and_the_same_again() -> None:
    space = load_space("default")
    numbers = space.sample(50_000, 7)
    assert len(np.unique(numbers)) == 50_000
    assert np.array_equal(numbers, space.sample(50_000, 7))
    assert not np.array_equal(numbers, space.sample(50_000, 8))
    # ten equal parts of the space get 5,000 each; the standard deviation is under 68
    assert (abs(np.histogram(numbers, bins=10, range=(0, space.size))[0] - 5000) < 6 * 68).all()
    assert np.array_equal(parse_space("small", SMALL).sample(100, 0), np.arange(32))


def test_a_space_that_cannot_be_counted() -> None:
    hundred = tuple(range(1, 101))
    space = Space("huge", {"tma": dict.fromkeys(list(AXES)[:10], hundred)})
    assert space.size == 10**20
    with pytest.raises(UserError, match=f"has {10**20} schedules, more than the {2**63 - 1} that can be sampled; narrow an axis"):
        space.sample(10, 0)


def invoke(*arguments: str) -> str:
    ran = CliRunner().invoke(app, list(arguments))
    if ran.exception and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    return ran.output


def test_commands_take_a_space_file_and_axes(tmp_path: Path) -> None:
    """2 tile heights, 1 width, 2 stages, and nothing else to choose: what fused_reduction, swap_ab and pad add falls."""
    file = tmp_path / "narrow.yaml"
    file.write_text(
        "{base: default, gemv: off, pointer: off, wgmma: off,"
        " tma: {cta_m: [64, 128], cta_n: 128, cta_k: 64, warps: 4, split_k: 1, group_m: 8}}"
    )
    narrow = ("--shape", "4096x4096x4096", "--gpu", "h100", "--space", str(file), "--axis", "stages=3,4")
    fixed = ("--axis", "persistent_ctas_per_sm=0", "--axis", "flatten=0", "--axis", "epilogue_subtile=1")
    assert "4 of 32 schedules can run" in invoke("explain", *narrow, *fixed)
    outside = invoke("explain", *narrow, *fixed, "--schedule", "tma 64x128x64 w4 s5")
    assert "'tma 64x128x64 w4 s5' can run, but is not in space narrow with stages=3,4 persistent" in outside
    found = invoke("search", *narrow, *fixed, "--no-measure", "--trials", "1", "--db", str(tmp_path / "t.db"))
    assert "32 schedules of space narrow with stages=3,4" in found
    assert "1 of 1 candidates compiled" in found
    with pytest.raises(UserError, match="did you mean stages"):
        invoke("explain", *narrow, "--axis", "stagse=3")


@pytest.mark.parametrize("text", ["tma 128x256x64 w8 s3 g8 p1 f1", "pointer 16x64x128 w4 s6", "tma 64x64x64 w4 s2 k3 e2"])
def test_short_text_round_trips(text: str) -> None:
    assert str(parse_schedule(text)) == text


@pytest.mark.parametrize("text", ["tma", "tma 128x256", "tma 128x256x64 y3", "tma 128x256x64 wx", ""])
def test_wrong_schedule_texts(text: str) -> None:
    with pytest.raises(UserError):
        parse_schedule(text)
