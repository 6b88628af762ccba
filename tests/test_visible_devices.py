"""CUDA_VISIBLE_DEVICES as CUDA reads it. Of one card, what driver 580 did on an H200; of more, the rules of the programming guide."""

from __future__ import annotations

import pytest

from tuner.visible_devices import visible_cards, visible_slices

ONE = "GPU-3f81a4dc-7511-5193-52a3-d1a6eb5ae227"
MANY = ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-8932a001-0000-0000-0000-000000000000", "GPU-af7b61d8-1111-2222-3333-444444444444")

VISIBLE = ["0", " 0", "0 ", "\t0", "0\n", " 0 ,7", "+0", "-0", "00", "0x0", "0gpu", "0.5", "0;1", "0 1", "0,", "0,7", "0,-1", "0,abc"]
VISIBLE += [ONE, ONE[:12], ONE[:8], ONE[:5], ONE[:12].upper(), f"GPU-{ONE[4:].upper()}", f"{ONE}0", f"{ONE} ", f"{ONE},0", f"0,{ONE}"]
VISIBLE += ["4294967296", f"{ONE},GPU-zz", f"{ONE}, 0"]
HIDDEN = ["", " ", ",", ",0", "-1", "-1,0", "7,0", "1", "1,0", "0,0", "0 ,0", "0,0,1", "abc", "gpu", "all", "none", "NoDevFiles", "²", "٠"]
HIDDEN += ["GPU-", "GPU", ONE.lower(), f" {ONE}", f"{ONE[:12]}zz", f"GPU-zz,{ONE}", f"{ONE},{ONE}", f"{ONE[:12]},{ONE}", ONE[4:]]
HIDDEN += [f"MIG-{ONE}", f"MIG-{ONE}/0/0", "18446744073709551616", "9" * 5000]


@pytest.mark.parametrize("text", VISIBLE)
def test_the_one_card_is_visible(text: str) -> None:
    assert visible_cards(text, [ONE]) == [0]


@pytest.mark.parametrize("text", HIDDEN)
def test_the_one_card_is_hidden(text: str) -> None:
    assert visible_cards(text, [ONE]) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2,1", [2, 1]),
        ("0,2,-1,1", [0, 2]),
        ("2,0,9,1", [2, 0]),
        ("1,2,1", []),
        ("1,9,1", [1]),
        ("GPU-af7b61d8", [2]),
        ("GPU-8932", []),  # two begin so
        ("GPU-8932f,GPU-8932a", [0, 1]),
        ("GPU-af,GPU-8932,GPU-8932a", [2]),
        ("GPU-af,0", [2]),
        ("0,GPU-af", [0]),
    ],
)
def test_of_several_cards_those_before_the_first_invalid_one_are_visible(text: str, found: list[int]) -> None:
    assert visible_cards(text, MANY) == found


SLICES = [("MIG-c6d4f1ef-1111-5555-9999-aaaaaaaaaaaa", f"MIG-{ONE}/1/0"), ("MIG-c6d4ffff-1111-5555-9999-bbbbbbbbbbbb", f"MIG-{ONE}/2/0")]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (SLICES[1][0], [1]),
        ("MIG-c6d4f1ef", [0]),
        ("MIG-C6D4F1", [0]),
        ("MIG-c6d4f", []),
        (f"MIG-{ONE}/2/0", [1]),
        (f"MIG-{ONE}/3/0", []),
        ("MIG-", []),
        ("MIG-dddd,MIG-c6d4f1ef", []),
        ("MIG-c6d4f1ef,MIG-c6d4f1ef", []),
    ],
)
def test_slices_go_by_their_uuid_and_by_their_place(text: str, found: list[int]) -> None:
    assert visible_slices(text, SLICES) == found
