"""What a person's own GPU file may say, what the hash of it is of, and which names are near: the files and the figures in them."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import pytest

from search_spaces import gpu_files
from search_spaces.errors import UserError
from search_spaces.gpu_files import gpu_names, load_gpu, match_device, unnamed_device
from search_spaces.gpu_format import FIGURES, PLAUSIBLE, file_key
from tuner.calculations import gpus_text

GIB = 2**30
MINE = """
compute_capability: 9.0
sms: 100
peak_clock_mhz: 1500
memory_gib: 64
dram_gb_per_second: 3000
peak_tflops: {fp16: 600, bf16: 600}
"""
TIERS = "expected text, and one of A, B, C, M, D"
ONLY_NVIDIA = "and kernels are compiled for NVIDIA GPUs only; `tuner gpus` lists all, and FILE"


def write(folder: Path, text: str, name: str = "my.yaml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def packaged_text(name: str) -> str:
    return resources.files("search_spaces").joinpath("gpus", f"{name}.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # another unit, another scale, a slip of a digit
        (("second: 3000", "second: 3000000"), "dram_gb_per_second is 3000000, which no GPU has; give one from 10 to 100000"),
        (("second: 3000", "second: 3.35"), "dram_gb_per_second is 3.35, which no GPU has; give one from 10 to 100000"),
        (("memory_gib: 64", "memory_gib: 80000"), "memory_gib is 80000, which no GPU has; give one from 0.5 to 4096"),
        (("peak_clock_mhz: 1500", "peak_clock_mhz: 1.5"), "peak_clock_mhz is 1.5, which no GPU has; give one from 100 to 10000"),
        (("sms: 100", "sms: 16896"), "sms is 16896, which no GPU has; give one from 1 to 2048"),
        (("fp16: 600", "fp16: 600000000000000"), "peak_tflops.fp16 is 600000000000000, which no GPU has; give one from 0.1 to 25000"),
        (("sms: 100", "max_warps_per_sm: 2048\nsms: 100"), "max_warps_per_sm is 2048, which no GPU has; give one from 1 to 512"),
        # two figures that cannot both be right: 600 TFLOP/s take 2000 FMAs a clock and SM
        (
            ("sms: 100", "fma_per_sm_per_clock: {fp16: 20000}\nsms: 100"),
            "peak_tflops.fp16 is 600, but 2 x sms x peak_clock_mhz x fma_per_sm_per_clock.fp16 is 6000; correct one of them",
        ),
        (
            ("sms: 100", "shared_memory_per_cta_kib: 229\nsms: 100"),
            "shared_memory_per_cta_kib is 229, more than the 228 of an SM; give at most that",
        ),
        # what YAML 1.1 reads as 132 and 45,045
        (("sms: 100", "sms: 0x84"), "sms is '0x84'; expected a whole number above 0"),
        (("sms: 100", "sms: 12:30:45"), "sms is '12:30:45'; expected a whole number above 0"),
        (("sms: 100", "sms: 2026-01-01"), "sms is '2026-01-01'; expected a whole number above 0"),
        (("sms: 100", f"sms: {'9' * 100}"), "... (100 characters)'; expected a whole number above 0"),
        (("sms: 100", "sms: {value: 132, tier: [A]}"), "sms has source [] of tier ['A']; " + TIERS),
        (
            ("sms: 100", "sms: {value: 132, source: x, tier: [A]}"),
            "sms has source 'x' of tier ['A']; " + TIERS,
        ),
        (("sms: 100", "sms: 100\nsms: 132"), "'sms' stands twice, on lines 3 and 4; leave one"),
        (("capability: 9.0", "capability: true"), "compute_capability is True; expected one of 7.0"),
        (
            ("capability: 9.0", "capability: 11.1"),
            "is 11.1; expected one of 7.0, 7.5, 8.0, 8.6, 8.7, 8.9, 9.0, 10.0, 10.3, 11.0, 12.0",
        ),
    ],
)
def test_an_implausible_figure_is_named_with_both_numbers(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    assert change[0] in MINE
    with pytest.raises(UserError) as caught:
        load_gpu(write(tmp_path, MINE.replace(*change)))
    assert message in str(caught.value)


def test_every_figure_that_is_a_number_has_a_plausible_range() -> None:
    assert set(PLAUSIBLE) == {file_key(field) for field, kind in FIGURES.items() if kind != "flag"}


def test_the_hash_is_of_what_a_file_says(tmp_path: Path) -> None:
    mine = load_gpu(write(tmp_path, MINE)).figures_hash
    assert re.fullmatch("[0-9a-f]{16}", mine)
    (tmp_path / "elsewhere").mkdir()
    same = "# a remark\ntitle: My GPU\naliases: [x1]\ndevice_names: [NVIDIA X1]\n" + MINE.replace(
        "sms: 100", "sms: {value: 100, source: me}"
    )
    same = same.replace("memory_gib: 64", "memory_gib: 64.0")
    assert load_gpu(write(tmp_path / "elsewhere", same, "other.yaml")).figures_hash == mine
    changes = [
        ("sms: 100", "sms: 101"),
        ("capability: 9.0", "capability: 10.0"),
        ("fp16: 600", "fp16: 601"),
        ("sms: 100", "has_tma: false\nsms: 100"),
    ]
    others = [load_gpu(write(tmp_path, MINE.replace(*change))) for change in changes]
    assert {other.name for other in others} == {"my"}
    assert len({mine, *(other.figures_hash for other in others)}) == 5


def test_a_device_and_a_slice_have_the_hash_of_their_file() -> None:
    h200 = load_gpu("h200")
    present = match_device("NVIDIA H200", sms=132, memory_bytes=150_754_820_096, compute_capability=(9, 0))
    part = match_device("NVIDIA H200 MIG 3g.71gb", sms=60, memory_bytes=74_000_000_000, compute_capability=(9, 0))
    assert present is not None
    assert part is not None
    assert h200.figures_hash == present.figures_hash == part.figures_hash
    assert len({load_gpu(name).figures_hash for name in gpu_names()}) == len(gpu_names())


@pytest.mark.parametrize("text", ["mi300x", "MI250", "AMD Instinct MI355X", "gfx942", "rx-7900-xtx", "Radeon Pro W7900"])
def test_an_amd_name_is_told_as_one(text: str) -> None:
    with pytest.raises(UserError, match=f"it is a name of AMD's, {ONLY_NVIDIA}"):
        load_gpu(text)


OTHERS = {"arc-a770": "Intel", "B580": "Intel", "gaudi3": "Intel", "tpu-v5e": "Google", "m4-max": "Apple"}


@pytest.mark.parametrize(("text", "vendor"), OTHERS.items())
def test_other_vendors_are_told(text: str, vendor: str) -> None:
    with pytest.raises(UserError, match=f"it is a name of {vendor}'s, {ONLY_NVIDIA}"):
        load_gpu(text)


@pytest.mark.parametrize("text", ["p100", "a6000", "k80", "b100", "a500", "rtx-2080-ti", "", "x" * 5000, "\x1b[31m"])
def test_a_name_near_none_has_no_nearest(text: str) -> None:
    with pytest.raises(UserError) as caught:
        load_gpu(text)
    assert "nearest" not in str(caught.value)
    assert "FILE.yaml with compute_capability, sms, peak_clock_mhz, memory_gib, dram_gb_per_second and peak_tflops describes" in str(
        caught.value
    )
    assert len(str(caught.value)) < 300


def test_a_file_that_names_no_device_says_which_line_is_missing(tmp_path: Path) -> None:
    mine = load_gpu(write(tmp_path, MINE))
    assert unnamed_device(mine, "NVIDIA H200") == (
        "nothing is measured: the file of my names no device; add the line `device_names: [NVIDIA H200]` to it"
        " to measure on the one present"
    )
    assert unnamed_device(load_gpu("h200"), "NVIDIA H100") is None


def test_orin_modules_of_fewer_sms_are_other_parts_and_no_slices() -> None:
    """An Orin NX has 8 SMs, 16 GB and the same driver's name; no Orin has MIG."""
    assert match_device("Orin", sms=8, memory_bytes=15 * GIB, compute_capability=(8, 7)) is None
    found = match_device("Orin", sms=16, memory_bytes=62841 * 2**20, compute_capability=(8, 7))
    assert found is not None
    assert found.name == "jetson-agx-orin-64gb"


def test_one_bad_file_takes_nothing_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"bad": "sms: [", "l4": packaged_text("l4"), "h200-sxm-141gb": packaged_text("h200-sxm-141gb")}
    monkeypatch.setattr(gpu_files, "gpu_names", lambda: tuple(texts))
    monkeypatch.setattr(gpu_files, "_packaged", texts.__getitem__)
    gpu_files._spellings.cache_clear()
    try:
        assert load_gpu("h200").name == "h200-sxm-141gb"
        assert match_device("NVIDIA L4", sms=58, memory_bytes=23 * GIB, compute_capability=(8, 9)) is not None
        with pytest.raises(UserError, match=r"bad\.yaml is not YAML"):
            load_gpu("bad")
        listed = gpus_text()
    finally:
        gpu_files._spellings.cache_clear()
    assert "NVIDIA L4" in listed
    assert "not readable: bad.yaml is not YAML, line 2" in listed
