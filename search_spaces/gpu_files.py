"""Which GPU is meant: by name, alias, path to a file of the user's, or what the driver reports. What the files say is `gpu_format`'s."""

from __future__ import annotations

import difflib
import re
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path

from search_spaces.errors import UserError
from search_spaces.gpu_format import parse_document, parse_gpu
from search_spaces.hardware import Hardware
from search_spaces.plain_text import shown, visible
from search_spaces.text_files import named, read_text_file

SLICE_SM_SHARE = 0.95  # an A100's widest MIG slice has 98 of its 108 SMs
SLICE_MEMORY_SHARE = 0.75  # a MIG slice has half of the memory at most, or all of it; ECC takes up to a tenth of a full card's
BRANDS = ("nvidia", "geforce", "tesla")
MIG_DEVICE = re.compile(r"(?P<card>.+) MIG (?:\d+c\.)?\d+g\.\d+gb\S*")
SLICE_NAME = re.compile(r"(?P<card>.+)-mig-(?P<sms>[1-9]\d*)sm-(?P<gib>[1-9]\d*)gib")
PATH_ENDINGS = (".yaml", ".yml")
NEAREST = 3
NEAR = 0.8  # of difflib's likeness: a slip of the fingers, not another chip's name
HOW_FILE = (
    "FILE.yaml with compute_capability, sms, peak_clock_mhz, memory_gib, dram_gb_per_second and peak_tflops describes another NVIDIA GPU"
)
# names of chips that no file can describe: the kernels are compiled for NVIDIA's compute capabilities
OTHER_VENDORS = {
    "AMD": re.compile(r"amd.*|(instinct)?mi\d{2,3}[a-z]?|instinct.*|gfx[0-9a-f]+|radeon.*|(rx|w)\d{4}(xtx?|gre|m)?|vega.*|strixhalo"),
    "Intel": re.compile(
        r"intel.*|arc.*|a(310|380|580|750|770)m?|b(570|580)|gaudi.*|habana.*|(datacenter)?(gpu)?max1\d{3}|pvc|pontevecchio"
    ),
    "Google": re.compile(r"(google)?(cloud)?tpu.*"),
    "Apple": re.compile(r"apple.*|m[1-9](pro|max|ultra)?"),
}
ONE_NAME = ((8, 7),)  # compute capabilities whose modules, of 4 to 16 SMs, all have one driver's name, and no MIG
DRIVER = "reported by the driver"
SHARED_BY_MEMORY = ("dram_bytes_per_second", "l2_bytes")


def gpu_names() -> tuple[str, ...]:
    """Every GPU that has a file in `search_spaces/gpus/`."""
    files = resources.files("search_spaces").joinpath("gpus").iterdir()
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")))


def load_gpu(text: str) -> Hardware:
    """The GPU of a name, an alias, a path that ends in .yaml or .yml, or the name that `match_device` gave a MIG slice."""
    if text.lower().endswith(PATH_ENDINGS):
        return _load_path(Path(text))
    part = SLICE_NAME.fullmatch(text.strip().lower())
    if part:
        card, sms = _load(resolve_alias(part["card"])), int(part["sms"])
        if card.sms is not None and sms > card.sms:
            raise UserError(f"{text} has {sms} SMs, more than the {card.sms} of {card.name}; give the name that a search on it shows")
        return _slice(card, sms=sms, memory_bytes=int(part["gib"]) * 2**30, origin=f"the name {text}")
    return _load(resolve_alias(text))


def resolve_alias(text: str) -> str:
    """The name of the GPU that a name, an alias or a driver's name stands for; case, brand, spaces, `-` and `_` do not matter."""
    if text in gpu_names():
        return text
    plain = _plain(text)
    found = _spellings().get(plain)
    if found is None:
        raise UserError(f"no gpu named {shown(text)}; {_hint(plain[:100])}`tuner gpus` lists all, and {HOW_FILE}")
    return found


def _hint(plain: str) -> str:
    """What the name may have been meant for: another vendor's chip, or the GPUs whose names are a slip away."""
    for vendor, names in OTHER_VENDORS.items():
        if names.fullmatch(plain):
            return f"it is a name of {vendor}'s, and kernels are compiled for NVIDIA GPUs only; "
    close = difflib.get_close_matches(plain, _spellings(), n=2 * NEAREST, cutoff=NEAR)
    nearest = list(dict.fromkeys(_spellings()[spelling] for spelling in close))[:NEAREST]
    return f"nearest: {', '.join(nearest)}; " if nearest else ""


def aliases(name: str) -> tuple[str, ...]:
    """The other names that a GPU's file gives it."""
    return tuple(parse_document(f"{name}.yaml", _packaged(name)).get("aliases", ()))


def match_device(driver_name: str, *, sms: int, memory_bytes: int, compute_capability: tuple[int, int]) -> Hardware | None:
    """The GPU whose file names this device exactly, as `on_device` makes it; None where none does."""
    for hardware in readable_gpus()[0]:
        found = on_device(hardware, driver_name, sms=sms, memory_bytes=memory_bytes, compute_capability=compute_capability)
        if found is not None:
            return found
    return None


def readable_gpus() -> tuple[list[Hardware], list[str]]:
    """Every GPU whose file can be read, and a sentence for each whose file cannot: one bad file takes nothing from the others."""
    found, faults = [], []
    for name in gpu_names():
        try:
            found.append(_load(name))
        except UserError as error:
            faults.append(str(error))
    return found, faults


def unnamed_device(hardware: Hardware, driver_name: str) -> str | None:
    """The sentence that says why nothing is measured on the device present, where the GPU's file names no device at all."""
    if hardware.device_names:
        return None
    line = f"device_names: [{visible(driver_name)}]"
    return f"nothing is measured: the file of {hardware.name} names no device; add the line `{line}` to it to measure on the one present"


def on_device(hardware: Hardware, driver_name: str, *, sms: int, memory_bytes: int, compute_capability: tuple[int, int]) -> Hardware | None:
    """This GPU as the device present is: SM count and memory are the driver's. None where its file does not name the device.

    A MIG slice (told by its name, or by far fewer SMs or far less memory than the card) gets a name of its own, the card's L2 and DRAM
    bandwidth in proportion to its memory and peak to its SMs, and no power limit, which it shares with its neighbours.
    """
    mig = MIG_DEVICE.fullmatch(driver_name)
    if (mig["card"] if mig else driver_name) not in hardware.device_names or compute_capability != hardware.compute_capability:
        return None
    share = sms / hardware.sms if hardware.sms else 1.0
    if share > 1 / SLICE_SM_SHARE or (share < SLICE_SM_SHARE and compute_capability in ONE_NAME):
        return None  # another part under the same name
    if mig or share < SLICE_SM_SHARE or memory_bytes < SLICE_MEMORY_SHARE * hardware.memory_bytes:
        return _slice(hardware, sms=sms, memory_bytes=memory_bytes, origin=DRIVER)
    return _with_sms(hardware, sms=sms, memory_bytes=memory_bytes, origin=DRIVER)


def _with_sms(hardware: Hardware, *, sms: int, memory_bytes: int, origin: str) -> Hardware:
    """With these counts and the peak in proportion to the SMs; without a peak where the file has no SM count to scale by."""
    peak_flops = {dtype: peak * sms / hardware.sms for dtype, peak in hardware.peak_flops.items()} if hardware.sms else {}
    sources = {**hardware.sources, "sms": origin, "memory_bytes": origin}
    return replace(hardware, sms=sms, memory_bytes=memory_bytes, peak_flops=peak_flops, sources=sources)


def _slice(hardware: Hardware, *, sms: int, memory_bytes: int, origin: str) -> Hardware:
    share = min(memory_bytes / hardware.memory_bytes, 1.0)
    gib = max(round(memory_bytes / 2**30), 1)
    part = _with_sms(hardware, sms=sms, memory_bytes=memory_bytes, origin=origin)
    shared = {field: f"{share:.3f}, by memory, of the card's: {part.sources[field]}" for field in SHARED_BY_MEMORY if field in part.sources}
    return replace(
        part,
        name=f"{hardware.name}-mig-{sms}sm-{gib}gib",
        title=f"{hardware.title}: MIG slice of {sms} SMs and {gib} GiB",
        dram_bytes_per_second=hardware.dram_bytes_per_second * share,
        l2_bytes=None if hardware.l2_bytes is None else round(hardware.l2_bytes * share),
        power_w=None,
        sources={field: source for field, source in {**part.sources, **shared}.items() if field != "power_w"},
    )


def _load(name: str) -> Hardware:
    return parse_gpu(name, f"{name}.yaml", _packaged(name))


def _packaged(name: str) -> str:
    with resources.as_file(resources.files("search_spaces").joinpath("gpus", f"{name}.yaml")) as path:
        return read_text_file(path, "the gpu file", "reinstall the package")


def _load_path(path: Path) -> Hardware:
    text = read_text_file(path, "the gpu file", "give a YAML file, or a name that `tuner gpus` lists")
    return parse_gpu(named(path.stem), named(path), text)


@cache
def _spellings() -> dict[str, str]:
    """Plain spelling -> name, of every name, alias and driver's name. A file that cannot be read has its name alone."""
    found = {}
    for name in gpu_names():
        try:
            document = parse_document(f"{name}.yaml", _packaged(name))
        except UserError:
            document = {}
        for spelling in (name, *document.get("aliases", ()), *document.get("device_names", ())):
            found[_plain(spelling)] = name
    return found


def _plain(text: str) -> str:
    words = [word for word in re.split(r"[\s_-]+", text.strip().lower()) if word not in BRANDS]
    return "".join(words)
