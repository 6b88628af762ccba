"""GPU files: every figure right and sourced, every name found, and no device taken for another."""

from __future__ import annotations

import pickle
from dataclasses import fields
from importlib import resources
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.errors import UserError
from search_spaces.gpu_files import aliases, gpu_names, load_gpu, match_device, on_device, resolve_alias
from search_spaces.gpu_format import FIGURES, TIERS, architectures, file_key, parse_gpu
from search_spaces.hardware import Hardware

GIB = 2**30
# the figures that no public source gives; a new hole, or a filled one, shows here
HOLES = {
    "gb10-128gb": {"max_clock_mhz"},
    "jetson-thor-128gb": {"max_clock_mhz"},
    "gh200-96gb": {"max_clock_mhz", "power_w"},
    "h100-nvl-94gb": {"l2_bytes"},
    "h20-96gb": {"max_clock_mhz", "peak_flops.fp32"},
    "l40s": {"l2_bytes"},
    "rtx-3090": {"max_clock_mhz"},
    "rtx-4090": {"max_clock_mhz"},
    "rtx-5090": {"max_clock_mhz"},
    "rtx-pro-6000": {"max_clock_mhz"},
    "t4": {"peak_flops.bf16", "fma_per_sm_per_clock.bf16"},
    "v100-sxm2-16gb": {"peak_flops.bf16", "fma_per_sm_per_clock.bf16"},
    "v100-sxm2-32gb": {"peak_flops.bf16", "fma_per_sm_per_clock.bf16"},
}
# dense fp16 with fp32 accumulation, SMs, DRAM GB/s, as the vendors' (for h20 third parties') documents print them
DATASHEET = {
    "v100-sxm2-16gb": (125, 80, 900),
    "v100-sxm2-32gb": (125, 80, 900),
    "t4": (65, 40, 320),
    "a100-sxm-40gb": (312, 108, 1555),
    "a100-sxm-80gb": (312, 108, 2039),
    "a100-pcie-40gb": (312, 108, 1555),
    "a100-pcie-80gb": (312, 108, 1935),
    "a10": (125, 72, 600),
    "rtx-3090": (71, 82, 936),
    "rtx-4090": (165.2, 128, 1008),
    "rtx-5090": (209.5, 170, 1792),
    "l4": (121, 58, 300),
    "l40s": (362.05, 142, 864),
    "h100-sxm-80gb": (989.4, 132, 3350),
    "h100-pcie-80gb": (756, 114, 2000),
    "h100-nvl-94gb": (835.5, 132, 3938),
    "h200-sxm-141gb": (989.5, 132, 4800),
    "gh200-96gb": (989, 132, 4000),
    "h20-96gb": (148, 78, 4000),
    "b200-180gb": (2250, 148, 7700),
    "rtx-pro-6000": (503.8, 188, 1792),
    "b300-288gb": (2250, 148, 7700),
    "jetson-agx-orin-64gb": (42.5, 16, 204.8),
    "jetson-thor-128gb": (258.75, 20, 273),
    "gb10-128gb": (125, 48, 273),
}
MINE = """
compute_capability: 9.0
sms: 100
peak_clock_mhz: 1500
memory_gib: 64
dram_gb_per_second: 3000
peak_tflops: {fp16: 600, bf16: 600}
"""


def write(folder: Path, text: str, name: str = "my.yaml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def known_figures(gpu: Hardware) -> set[str]:
    plain = {field for field, kind in FIGURES.items() if kind != "per dtype" and getattr(gpu, field) is not None}
    per_dtype = {f"{field}.{dtype}" for field in ("peak_flops", "fma_per_sm_per_clock") for dtype in getattr(gpu, field)}
    return plain | per_dtype


def all_figures() -> set[str]:
    plain = {field for field, kind in FIGURES.items() if kind != "per dtype"}
    return plain | {f"{field}.{dtype}" for field in ("peak_flops", "fma_per_sm_per_clock") for dtype in ("fp16", "bf16", "fp32")}


def packaged_text(name: str) -> str:
    return resources.files("search_spaces").joinpath("gpus", f"{name}.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", gpu_names())
class TestEveryFile:
    def test_its_name_title_and_device_names_are_given(self, name: str) -> None:
        gpu = load_gpu(name)
        assert gpu.name == name
        assert gpu.title.startswith("NVIDIA ")
        assert gpu.device_names
        assert gpu.compute_capability in architectures()

    def test_every_figure_has_a_source_and_a_tier(self, name: str) -> None:
        gpu = load_gpu(name)
        assert set(gpu.sources) == known_figures(gpu)
        unsourced = {figure for figure, source in gpu.sources.items() if "[tier " not in source or "names no source" in source}
        assert unsourced == set()

    def test_every_source_key_it_names_is_explained_and_used(self, name: str) -> None:
        document = yaml.safe_load(packaged_text(name))
        entries = [entry for entry in document.values() if isinstance(entry, dict) and "source" in entry]
        entries += [entry for key in ("peak_tflops", "fma_per_sm_per_clock") for entry in document[key].values()]
        named = {key for entry in entries for key in (entry["source"] if isinstance(entry["source"], list) else [entry["source"]])}
        assert named == set(document["sources"])
        assert {entry["tier"] for entry in entries} <= set(TIERS)

    def test_only_the_known_holes_are_left(self, name: str) -> None:
        assert all_figures() - known_figures(load_gpu(name)) == HOLES.get(name, set())

    def test_the_tensor_peak_is_sms_times_clock_times_rate(self, name: str) -> None:
        gpu = load_gpu(name)
        for dtype in gpu.peak_flops.keys() - {"fp32"}:
            recomputed = 2 * gpu.need("sms") * gpu.clock_hz * gpu.fma_per_sm_per_clock[dtype]
            assert recomputed == pytest.approx(gpu.peak_flops[dtype], rel=0.02), dtype

    def test_the_fp32_peak_is_sms_times_highest_clock_times_rate(self, name: str) -> None:
        gpu = load_gpu(name)
        if name in ("h20-96gb", "gh200-96gb"):  # no fp32 peak that its tables agree on; no published clock of the fp32 peak
            assert gpu.max_clock_mhz is None
            return
        clock_hz = (gpu.max_clock_mhz or gpu.need("peak_clock_mhz")) * 1e6
        assert 2 * gpu.need("sms") * clock_hz * gpu.fma_per_sm_per_clock["fp32"] == pytest.approx(gpu.peak_flops["fp32"], rel=0.02)

    def test_figures_are_in_a_plausible_range(self, name: str) -> None:
        """Catches a slip of unit: MHz for kHz, GB for GiB, a sparse peak."""
        gpu = load_gpu(name)
        assert 1000 < gpu.need("peak_clock_mhz") < 3000
        assert (gpu.max_clock_mhz or 5000) >= gpu.need("peak_clock_mhz")
        assert 2e11 <= gpu.dram_bytes_per_second <= 1e13
        assert 16 * GIB <= gpu.memory_bytes <= 288 * GIB
        assert 4 * 2**20 <= (gpu.l2_bytes or 2**24) <= 128 * 2**20
        assert 30 < gpu.peak_flops["fp16"] / gpu.dram_bytes_per_second < 950  # Jetson Thor: a data centre's SMs on LPDDR5X
        assert isinstance(gpu.memory_bytes, int)

    def test_it_travels_to_worker_processes(self, name: str) -> None:
        gpu = load_gpu(name)
        assert pickle.loads(pickle.dumps(gpu)) == gpu

    def test_its_aliases_and_device_names_lead_to_it_alone(self, name: str) -> None:
        for spelling in (name, *aliases(name), *load_gpu(name).device_names):
            assert resolve_alias(spelling) == name
            assert resolve_alias(f" {spelling.upper().replace('-', '_')} ") == name


@pytest.mark.parametrize("name", DATASHEET)
def test_figures_are_those_of_the_datasheet(name: str) -> None:
    tflops, sms, gb_per_second = DATASHEET[name]
    gpu = load_gpu(name)
    assert gpu.peak_flops["fp16"] == pytest.approx(tflops * 1e12)
    assert gpu.peak_flops.get("bf16", gpu.peak_flops["fp16"]) == gpu.peak_flops["fp16"]
    assert gpu.sms == sms
    assert gpu.dram_bytes_per_second == pytest.approx(gb_per_second * 1e9)


def test_shared_memory_limits_per_compute_capability() -> None:
    limits = {gpu.compute_capability: gpu.shared_memory_per_cta_bytes for gpu in map(load_gpu, gpu_names())}
    before_hopper = {(7, 0): 98304, (7, 5): 65536, (8, 0): 166912, (8, 6): 101376, (8, 7): 166912, (8, 9): 101376}
    blackwell = {(10, 0): 232448, (10, 3): 232448, (11, 0): 232448, (12, 0): 101376, (12, 1): 101376}
    assert limits == before_hopper | {(9, 0): 232448} | blackwell


def test_architecture_figures_of_hopper_and_consumer_blackwell() -> None:
    h100, rtx5090 = load_gpu("h100"), load_gpu("rtx5090")
    assert (h100.max_warps_per_sm, h100.max_ctas_per_sm, h100.shared_memory_per_sm_bytes) == (64, 32, 233472)
    assert (rtx5090.max_warps_per_sm, rtx5090.max_ctas_per_sm, rtx5090.shared_memory_per_sm_bytes) == (48, 24, 102400)
    assert (h100.registers_per_sm, h100.max_registers_per_thread, h100.register_allocation_unit) == (65536, 255, 256)


@pytest.mark.parametrize(
    ("name", "cp_async", "tma", "mma"),
    [
        ("v100", False, False, False),
        ("t4", False, False, False),
        ("a100", True, False, True),
        ("l4", True, False, True),
        ("h100", True, True, True),
    ],
)
def test_what_an_architecture_has(name: str, cp_async: bool, tma: bool, mma: bool) -> None:
    gpu = load_gpu(name)
    assert (gpu.has_cp_async, gpu.has_tma, gpu.has_triton_mma) == (cp_async, tma, mma)


def test_geforce_boards_have_half_the_rate_of_their_pro_siblings() -> None:
    for geforce, pro in (("rtx-3090", "a10"), ("rtx-4090", "l40s"), ("rtx-5090", "rtx-pro-6000")):
        assert 2 * load_gpu(geforce).fma_per_sm_per_clock["bf16"] == load_gpu(pro).fma_per_sm_per_clock["bf16"]


@pytest.mark.parametrize("name", ["v100", "t4"])
def test_no_bf16_before_ampere(name: str) -> None:
    gpu = load_gpu(name)
    assert "bf16" not in gpu.peak_flops
    assert "bf16" not in gpu.fma_per_sm_per_clock


def test_an_unknown_figure_says_so_and_what_to_add() -> None:
    with pytest.raises(UserError, match=r"gpu l40s has no published figure for l2_bytes; copy its YAML file, add l2_mib"):
        load_gpu("l40s").need("l2_bytes")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h100", "h100-sxm-80gb"),
        ("H100-SXM", "h100-sxm-80gb"),
        ("h100_sxm", "h100-sxm-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("NVIDIA H100", "h100-sxm-80gb"),
        ("NVIDIA H100 NVL", "h100-nvl-94gb"),
        ("NVIDIA H100 PCIe", "h100-pcie-80gb"),
        ("a100", "a100-sxm-80gb"),
        ("A100 80GB PCIe", "a100-pcie-80gb"),
        ("h200", "h200-sxm-141gb"),
        ("rtx5090", "rtx-5090"),
        ("RTX 5090", "rtx-5090"),
        ("v100", "v100-sxm2-16gb"),
        ("gh200", "gh200-96gb"),
        ("h20", "h20-96gb"),
        ("b200", "b200-180gb"),
    ],
)
def test_aliases_as_people_write_them(text: str, name: str) -> None:
    assert resolve_alias(text) == name
    assert load_gpu(text).name == name


@pytest.mark.parametrize("text", ["NVIDIA H200 NVL", "NVIDIA H20-3e", "NVIDIA A10G", "GeForce RTX 5090 Laptop GPU", "h10", "Foo 1234", ""])
def test_another_variant_is_never_a_silent_hit(text: str) -> None:
    with pytest.raises(UserError, match=r"no gpu named .*`tuner gpus` lists all"):
        load_gpu(text)


def test_an_unknown_name_lists_the_nearest() -> None:
    with pytest.raises(UserError, match=r"no gpu named 'h100-sxn'; nearest: h100-sxm-80gb"):
        load_gpu("h100-sxn")


@given(st.text(max_size=20))
def test_any_other_text_is_a_sentence(text: str) -> None:
    with pytest.raises(UserError, match="gpu"):
        load_gpu("no such " + text)


FULL_CARDS = [
    ("NVIDIA H100 80GB HBM3", 132, 79.1, (9, 0), "h100-sxm-80gb", 989),
    ("NVIDIA H100 PCIe", 114, 79.1, (9, 0), "h100-pcie-80gb", 756),
    ("NVIDIA H100 NVL", 132, 93.0, (9, 0), "h100-nvl-94gb", 835),
    ("NVIDIA H200", 132, 139.8, (9, 0), "h200-sxm-141gb", 989),
    ("NVIDIA H20", 78, 95.0, (9, 0), "h20-96gb", 148),
    ("NVIDIA GH200 480GB", 132, 94.5, (9, 0), "gh200-96gb", 989),
    ("NVIDIA A100-SXM4-40GB", 108, 39.4, (8, 0), "a100-sxm-40gb", 312),
    ("NVIDIA A100 80GB PCIe", 108, 79.1, (8, 0), "a100-pcie-80gb", 312),
    ("NVIDIA GeForce RTX 5090", 170, 31.4, (12, 0), "rtx-5090", 209),
    ("Tesla T4", 40, 14.7, (7, 5), "t4", 65),
    ("NVIDIA A10", 72, 22.1, (8, 6), "a10", 125),
]


@pytest.mark.parametrize(("driver", "sms", "gib", "capability", "name", "tflops"), FULL_CARDS)
def test_the_driver_name_finds_the_variant_and_its_dense_peak(
    driver: str, sms: int, gib: float, capability: tuple[int, int], name: str, tflops: int
) -> None:
    found = match_device(driver, sms=sms, memory_bytes=int(gib * GIB), compute_capability=capability)
    assert found is not None
    assert found.name == name
    assert int(found.peak_flops["fp16"] / 1e12) == tflops
    assert found.memory_bytes == int(gib * GIB)
    assert found.dram_bytes_per_second == load_gpu(name).dram_bytes_per_second
    assert found.power_w == load_gpu(name).power_w


NO_FILE = ["NVIDIA H200 NVL", "NVIDIA H20-3e", "NVIDIA H100", "NVIDIA H100 80GB HBM3e", "nvidia h100 pcie", "Foo 1234", ""]


@pytest.mark.parametrize("driver", NO_FILE)
def test_a_device_without_a_file_is_not_taken_for_another(driver: str) -> None:
    assert match_device(driver, sms=132, memory_bytes=80 * GIB, compute_capability=(9, 0)) is None


def test_a_device_of_another_compute_capability_is_not_the_gpu() -> None:
    assert match_device("NVIDIA H200", sms=132, memory_bytes=140 * GIB, compute_capability=(9, 1)) is None


def test_a_device_of_many_more_sms_is_another_part() -> None:
    assert match_device("NVIDIA H200", sms=144, memory_bytes=140 * GIB, compute_capability=(9, 0)) is None


def test_where_the_full_card_differs_a_little_the_driver_wins() -> None:
    found = match_device("NVIDIA H200", sms=130, memory_bytes=140 * GIB, compute_capability=(9, 0))
    assert found is not None
    assert (found.name, found.sms) == ("h200-sxm-141gb", 130)
    assert found.peak_flops["bf16"] == pytest.approx(989.5e12 * 130 / 132)
    assert found.sources["sms"] == "reported by the driver"


SLICES = [
    (16, 17.5, "1g.18gb"),
    (26, 35.0, "1g.35gb"),
    (32, 35.0, "2g.35gb"),
    (60, 70.0, "3g.71gb"),
    (64, 70.0, "4g.71gb"),
    (132, 140.0, "7g.141gb"),
]


@pytest.mark.parametrize(("sms", "gib", "profile"), SLICES)
def test_a_mig_slice_is_never_the_card(sms: int, gib: float, profile: str) -> None:
    card = load_gpu("h200")
    found = match_device(f"NVIDIA H200 MIG {profile}", sms=sms, memory_bytes=int(gib * GIB), compute_capability=(9, 0))
    assert found is not None
    assert found.name == f"h200-sxm-141gb-mig-{sms}sm-{round(gib)}gib"
    assert (found.sms, found.memory_bytes) == (sms, int(gib * GIB))
    assert found.dram_bytes_per_second == pytest.approx(4.8e12 * gib / 141)
    assert found.l2_bytes == pytest.approx(50 * 2**20 * gib / 141, abs=1)
    assert found.peak_flops["bf16"] == pytest.approx(989.5e12 * sms / 132)
    assert found.power_w is None
    assert found.shared_memory_per_cta_bytes == card.shared_memory_per_cta_bytes
    assert set(found.sources) == known_figures(found)
    assert "by memory, of the card's" in found.sources["l2_bytes"]


def test_a_slice_is_told_by_its_size_where_the_driver_gives_the_card_name() -> None:
    for sms, gib in ((60, 70), (132, 70), (60, 140)):
        found = match_device("NVIDIA H200", sms=sms, memory_bytes=gib * GIB, compute_capability=(9, 0))
        assert found is not None
        assert found.name == f"h200-sxm-141gb-mig-{sms}sm-{gib}gib"


def test_slices_of_equal_sms_and_other_memory_have_other_names() -> None:
    small = match_device("NVIDIA A100-SXM4-40GB MIG 1g.5gb", sms=14, memory_bytes=int(4.75 * GIB), compute_capability=(8, 0))
    large = match_device("NVIDIA A100-SXM4-40GB MIG 1g.10gb", sms=14, memory_bytes=int(9.5 * GIB), compute_capability=(8, 0))
    assert small is not None
    assert large is not None
    assert small.name != large.name


def test_a_compute_instance_of_a_slice_is_a_slice() -> None:
    found = match_device("NVIDIA H200 MIG 1c.3g.71gb", sms=16, memory_bytes=70 * GIB, compute_capability=(9, 0))
    assert found is not None
    assert found.name == "h200-sxm-141gb-mig-16sm-70gib"


def test_a_slice_can_be_named_without_the_device() -> None:
    found = match_device("NVIDIA H200 MIG 3g.71gb", sms=60, memory_bytes=int(69.6 * GIB), compute_capability=(9, 0))
    assert found is not None
    named = load_gpu(found.name)
    assert (named.name, named.sms, named.compute_capability) == (found.name, 60, (9, 0))
    assert named.sources["sms"] == "the name h200-sxm-141gb-mig-60sm-70gib"


def test_a_slice_larger_than_its_card_is_refused() -> None:
    with pytest.raises(UserError, match="200 SMs, more than the 132 of h200-sxm-141gb"):
        load_gpu("h200-mig-200sm-70gib")


def test_mig_of_an_unknown_card_is_unknown() -> None:
    assert match_device("NVIDIA H200 NVL MIG 3g.71gb", sms=60, memory_bytes=70 * GIB, compute_capability=(9, 0)) is None


def test_my_yaml_is_short_and_takes_its_limits_from_the_compute_capability(tmp_path: Path) -> None:
    gpu = load_gpu(write(tmp_path, MINE))
    assert (gpu.name, gpu.title, gpu.compute_capability, gpu.sms) == ("my", "my", (9, 0), 100)
    assert (gpu.memory_bytes, gpu.dram_bytes_per_second) == (64 * GIB, 3e12)
    assert gpu.shared_memory_per_cta_bytes == 232448
    assert gpu.fma_per_sm_per_clock["bf16"] == pytest.approx(600e12 / (2 * 100 * 1.5e9))
    assert gpu.fma_per_sm_per_clock["fp32"] == 128
    assert (gpu.l2_bytes, gpu.power_w, gpu.device_names) == (None, None, ())
    assert gpu.sources["sms"].endswith("my.yaml, which names no source")


def test_my_yaml_may_override_a_limit_and_name_its_own_sources(tmp_path: Path) -> None:
    text = MINE + "shared_memory_per_cta_kib: {value: 100, source: my own measurement, tier: M}\nfma_per_sm_per_clock: {fp32: 64}\n"
    gpu = load_gpu(write(tmp_path, text, "other.yml"))
    assert gpu.name == "other"
    assert gpu.shared_memory_per_cta_bytes == 102400
    assert gpu.sources["shared_memory_per_cta_bytes"] == "my own measurement [tier M]"
    assert gpu.fma_per_sm_per_clock["fp32"] == 64


@pytest.mark.parametrize("name", gpu_names())
def test_a_copy_of_a_packaged_file_is_the_same_gpu(name: str, tmp_path: Path) -> None:
    assert load_gpu(write(tmp_path, packaged_text(name), f"{name}.yaml")) == load_gpu(name)


def test_a_file_of_the_users_is_matched_to_the_device_it_names(tmp_path: Path) -> None:
    mine = load_gpu(write(tmp_path, MINE + "device_names: [NVIDIA X1]\n"))
    found = on_device(mine, "NVIDIA X1", sms=100, memory_bytes=63 * GIB, compute_capability=(9, 0))
    assert found is not None
    assert (found.name, found.memory_bytes) == ("my", 63 * GIB)


def test_a_slice_of_a_card_of_unknown_sms_has_no_peak(tmp_path: Path) -> None:
    mine = load_gpu(write(tmp_path, MINE.replace("sms: 100\n", "") + "device_names: [NVIDIA X1]\n"))
    found = on_device(mine, "NVIDIA X1 MIG 3g.32gb", sms=40, memory_bytes=32 * GIB, compute_capability=(9, 0))
    assert found is not None
    assert (found.sms, found.peak_flops) == (40, {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("sms: 100", "sms: many"), "sms is 'many'; expected a whole number above 0"),
        (("sms: 100", "sms: 1.5"), "sms is 1.5; expected a whole number above 0"),
        (("sms: 100", "sms: true"), "sms is True; expected a whole number above 0"),
        (("sms: 100", "sms: -4"), "sms is -4; expected a whole number above 0"),
        (("peak_clock_mhz: 1500", "peak_clock_mhz: .nan"), "peak_clock_mhz is '.nan'; expected a number above 0"),
        (("peak_clock_mhz: 1500", "peak_mhz: 1500"), "unknown key 'peak_mhz'; did you mean peak_clock_mhz?"),
        (("sms: 100", "zzz: 1"), "unknown key 'zzz'; known: title"),
        (("memory_gib: 64\n", ""), "memory_gib is missing; give a number above 0"),
        (("dram_gb_per_second: 3000\n", ""), "dram_gb_per_second is missing; give a number above 0"),
        (("peak_tflops: {fp16: 600, bf16: 600}\n", ""), "peak_tflops is missing; give a mapping from fp16, bf16, fp32"),
        (("bf16: 600", "tf32: 600"), "peak_tflops is {'fp16': 600, 'tf32': 600}; expected a mapping from fp16, bf16, fp32"),
        (("bf16: 600", "bf16: lots"), "peak_tflops.bf16 is 'lots'; expected a number above 0"),
        (("{fp16: 600, bf16: 600}", "600"), "peak_tflops is 600; expected a mapping from fp16, bf16, fp32"),
        (("compute_capability: 9.0\n", ""), "compute_capability is missing; expected one of 7.0, 7.5, 8.0"),
        (("capability: 9.0", "capability: 6.0"), "compute_capability is 6.0; expected one of 7.0, 7.5, 8.0"),
        (("sms: 100", "sms: {value: 100, from: me}"), "sms is {'value': 100, 'from': 'me'}; expected a whole number above 0, or value and"),
        (("sms: 100", "sms: {value: 100, source: me, tier: Z}"), "sms has source 'me' of tier 'Z'; expected text, and one of A, B, C"),
        (("sms: 100", "sms: {value: 100, source: [1]}"), "sms has source [1] of tier None"),
        (("sms: 100", "aliases: h1"), "aliases is 'h1'; expected a list of names"),
        (("sms: 100", "device_names: [1]"), "device_names is [1]; expected a list of names"),
        (("sms: 100", "title: 5"), "title is 5; expected text"),
        (("sms: 100", "sources: me"), "sources is 'me'; expected a mapping from short names"),
        (("sms: 100", "has_tma: 1"), "has_tma is 1; expected true or false"),
        (("sms: 100", "sms: [100"), "not YAML"),
    ],
)
def test_a_wrong_file_is_one_sentence_with_file_field_and_what_is_expected(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    assert change[0] in MINE
    with pytest.raises(UserError) as caught:
        load_gpu(write(tmp_path, MINE.replace(*change)))
    assert message in str(caught.value)
    assert "my.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "- 1\n", "just text"])
def test_a_file_that_is_no_mapping_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected a mapping"):
        load_gpu(write(tmp_path, text))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read the gpu file .*none\.yaml: No such file"):
        load_gpu(str(tmp_path / "none.yaml"))
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"binary\.yaml: not UTF-8 text \(byte 0 is 0xff\)"):
        load_gpu(str(tmp_path / "binary.yaml"))


def test_every_field_of_hardware_is_a_figure_or_describes_the_gpu() -> None:
    described = {"name", "title", "compute_capability", "device_names", "sources", "figures_hash"}
    assert {field.name for field in fields(Hardware)} == set(FIGURES) | described
    assert len({file_key(field) for field in FIGURES}) == len(FIGURES)


KEYS = st.sampled_from(["sms", "memory_gib", "peak_tflops", "title", "sources", "zzz"])


@given(st.dictionaries(KEYS, st.none() | st.booleans() | st.text() | st.floats()))
def test_a_wrong_document_is_always_a_sentence(document: dict[str, object]) -> None:
    with pytest.raises(UserError, match=r"odd\.yaml"):
        parse_gpu("odd", "odd.yaml", yaml.safe_dump(document))
