"""What a GPU's file says: figures, checked one by one, over those of its compute capability. Which file is meant is `gpu_files`'s.

A figure stands there bare (`sms: 132`) or with where it is from (`sms: {value: 132, tier: B, source: H100_WP, note: ...}`), the source
being a key of the file's `sources` or plain text. What no public source gives is left out. A file may override those of its architecture.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from search_spaces.errors import UserError
from search_spaces.hardware import FILE_UNITS, Hardware
from search_spaces.plain_text import shown, visible
from search_spaces.problem import DTYPE_BYTES
from search_spaces.yaml_text import read_yaml

TIERS = {
    "A": "vendor document",
    "B": "vendor document, read through a transcription, a quotation or a table that cites it",
    "C": "third-party table only",
    "M": "third-party measurement or device query",
    "D": "arithmetic on other figures",
}
TEXT_KEYS = ("title", "aliases", "device_names", "compute_capability", "sources")
ENTRY_KEYS = ("value", "tier", "source", "note")
EXPECTED = {
    "count": "a whole number above 0",
    "count or none": "a whole number of 0 or more",
    "number": "a number above 0",
    "flag": "true or false",
    "names": "a list of names in quotes or brackets, such as [h100, h100-sxm]",
    "text": "text",
    "per dtype": f"a mapping from {', '.join(DTYPE_BYTES)} to numbers above 0, such as {{fp16: 2048, bf16: 2048}}",
    "sources": "a mapping from short names to texts or addresses",
}
# the fields of Hardware that a file gives, and what each is; first a GPU's own, then what its compute capability decides
FIGURES = {
    "sms": "count",
    "peak_clock_mhz": "number",
    "max_clock_mhz": "number",
    "memory_bytes": "number",
    "dram_bytes_per_second": "number",
    "l2_bytes": "number",
    "power_w": "number",
    "fma_per_sm_per_clock": "per dtype",
    "peak_flops": "per dtype",
    "max_warps_per_sm": "count",
    "max_ctas_per_sm": "count",
    "max_threads_per_cta": "count",
    "shared_memory_per_sm_bytes": "number",
    "shared_memory_per_cta_bytes": "number",
    "reserved_shared_memory_per_cta_bytes": "count or none",
    "shared_memory_granularity_bytes": "count",
    "registers_per_sm": "count",
    "max_registers_per_thread": "count",
    "register_allocation_unit": "count",
    "subpartitions_per_sm": "count",
    "has_cp_async": "flag",
    "has_tma": "flag",
    "has_triton_mma": "flag",
}
MAY_BE_UNKNOWN = ("sms", "peak_clock_mhz", "max_clock_mhz", "l2_bytes", "power_w")
# least and most of each figure, by its key in the file and in its unit: from a tenth of the smallest GPU since 7.0 to ten times the
# largest, so that a slip of unit (TB/s for GB/s, kHz for MHz, sparse FP4) is refused and the next generations are not
PLAUSIBLE: Mapping[str, tuple[float, float]] = {
    "sms": (1, 2048),
    "peak_clock_mhz": (100, 10_000),
    "max_clock_mhz": (100, 10_000),
    "memory_gib": (0.5, 4096),
    "dram_gb_per_second": (10, 100_000),
    "l2_mib": (0.1, 4096),
    "power_w": (1, 20_000),
    "fma_per_sm_per_clock": (1, 65_536),
    "peak_tflops": (0.1, 25_000),
    "max_warps_per_sm": (1, 512),
    "max_ctas_per_sm": (1, 512),
    "max_threads_per_cta": (32, 4096),
    "shared_memory_per_sm_kib": (1, 4096),
    "shared_memory_per_cta_kib": (1, 4096),
    "reserved_shared_memory_per_cta_bytes": (0, 65_536),
    "shared_memory_granularity_bytes": (1, 65_536),
    "registers_per_sm": (1024, 2**22),
    "max_registers_per_thread": (16, 4096),
    "register_allocation_unit": (1, 65_536),
    "subpartitions_per_sm": (1, 64),
}
PEAK_AGREES = 4.0  # how far a peak may be from SMs x clock x rate: clocks of one board differ by less than 2


def file_key(field: str) -> str:
    """What the file calls a field of `Hardware`, or a `field.dtype` of it."""
    name, dot, dtype = field.partition(".")
    return FILE_UNITS.get(name, (name, 1.0))[0] + dot + dtype


@dataclass(frozen=True, kw_only=True)
class _Content:
    figures: Mapping[str, Any]  # field -> value in Hardware's unit; per dtype as `field.dtype`
    sources: Mapping[str, str]  # the same keys


def parse_gpu(name: str, label: str, text: str) -> Hardware:
    """The GPU that a file describes. `label` is what messages call the file."""
    document = parse_document(label, text)
    capability = _compute_capability(label, document.get("compute_capability"))
    own, below = _content(label, document), _architecture(capability)
    figures, sources = {**below.figures, **own.figures}, {**below.sources, **own.sources}
    for field, kind in FIGURES.items():
        present = field in figures or any(key.startswith(f"{field}.") for key in figures)
        if not present and field not in MAY_BE_UNKNOWN:
            raise UserError(f"{label}: {file_key(field)} is missing; give {EXPECTED[kind]}")
    said = _hash(capability, figures)
    _derive_rates(figures, sources)
    _check_together(label, figures)
    fields = {field: figures.get(field) for field, kind in FIGURES.items() if kind != "per dtype"}
    for field in ("fma_per_sm_per_clock", "peak_flops"):
        fields[field] = {dtype: figures[f"{field}.{dtype}"] for dtype in DTYPE_BYTES if f"{field}.{dtype}" in figures}
    for field, value in fields.items():
        if field.endswith("_bytes") and value is not None:
            fields[field] = round(value)
    names = tuple(document.get("device_names", ()))
    title = " ".join(visible(document.get("title", name)).split())
    return Hardware(
        name=name,
        title=title,
        compute_capability=capability,
        device_names=names,
        sources=sources,
        figures_hash=said,
        **fields,  # type: ignore[arg-type]
    )


def _hash(capability: tuple[int, int], figures: Mapping[str, Any]) -> str:
    """16 hex digits of the sha256 of what the file says with its architecture's figures under it. Its name, title, notes, sources and
    format are not in it: they change nothing that is compiled, ranked or measured."""
    said = {field: value if isinstance(value, bool) else float(value) for field, value in figures.items()}
    return hashlib.sha256(json.dumps([list(capability), said], sort_keys=True).encode()).hexdigest()[:16]


def parse_document(label: str, text: str) -> dict[str, Any]:
    """The file's top level, its keys and its texts checked, its figures as they stand."""
    document = read_yaml(label, text)
    if not isinstance(document, dict):
        what = {list: "a list", type(None): "nothing"}.get(type(document), shown(document))
        raise UserError(f"{label} holds {what}; expected a mapping such as `sms: 132`")
    known = [*TEXT_KEYS, *map(file_key, FIGURES)]
    for key in document:
        if key not in known:
            close = difflib.get_close_matches(key[:100], known, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
            raise UserError(f"{label}: unknown key {shown(key)}; {hint}")
    for key in ("aliases", "device_names"):
        names = document.get(key, [])
        if not isinstance(names, list) or not all(isinstance(item, str) for item in names):
            raise _wrong(label, key, names, "names")
    if not isinstance(document.get("title", ""), str):
        raise _wrong(label, "title", document["title"], "text")
    sources = document.get("sources", {})
    if not isinstance(sources, dict) or not all(isinstance(item, str) for item in sources.values()):
        raise _wrong(label, "sources", sources, "sources")
    return document


def _wrong(label: str, key: str, value: object, kind: str) -> UserError:
    return UserError(f"{label}: {key} is {_repr(value)}; expected {EXPECTED[kind]}")


def _repr(value: object) -> str:
    """A wrong value as a sentence repeats it: texts in quotes, the rest as Python writes it, cut where it is long."""
    return shown(value) if isinstance(value, str) else shown(repr(value), quotes=False)


def _compute_capability(label: str, value: object) -> tuple[int, int]:
    known = {f"{major}.{minor}": (major, minor) for major, minor in architectures()}
    if isinstance(value, bool) or str(value) not in known:
        what = "is missing" if value is None else f"is {_repr(value)}"
        raise UserError(f"{label}: compute_capability {what}; expected one of {', '.join(known)}")
    return known[str(value)]


@cache
def architectures() -> tuple[tuple[int, int], ...]:
    """Every compute capability whose limits are in `search_spaces/architectures/`."""
    files = resources.files("search_spaces").joinpath("architectures").iterdir()
    matches = (re.fullmatch(r"sm_(\d+)(\d)\.yaml", file.name) for file in files)
    return tuple(sorted((int(match[1]), int(match[2])) for match in matches if match))


@cache
def _architecture(capability: tuple[int, int]) -> _Content:
    name = f"sm_{capability[0]}{capability[1]}.yaml"
    file = resources.files("search_spaces").joinpath("architectures", name)
    return _content(name, parse_document(name, file.read_text(encoding="utf-8")))


def _content(label: str, document: Mapping[str, Any]) -> _Content:
    figures, sources = {}, {}
    for field, kind, entry in _entries(label, document):
        value = _value(label, file_key(field), entry, kind)
        unit = FILE_UNITS.get(field.partition(".")[0])
        figures[field] = value * unit[1] if unit else value
        sources[field] = _source(label, file_key(field), entry, document.get("sources", {}))
    return _Content(figures=figures, sources=sources)


def _entries(label: str, document: Mapping[str, Any]) -> Iterator[tuple[str, str, object]]:
    """(field, what it is, what stands there) of every figure that the file gives; one a dtype as `field.dtype`."""
    for field, kind in FIGURES.items():
        key = file_key(field)
        if key not in document:
            continue
        entry = document[key]
        if kind != "per dtype":
            yield field, kind, entry
            continue
        if not isinstance(entry, dict) or not entry or not set(entry) <= set(DTYPE_BYTES):
            raise _wrong(label, key, entry, kind)
        for dtype, figure in entry.items():
            yield f"{field}.{dtype}", "number", figure


def _value(label: str, key: str, entry: Any, kind: str) -> Any:
    if isinstance(entry, dict):
        if "value" not in entry or not set(entry) <= set(ENTRY_KEYS):
            beside = "or value and beside it tier, source and note"
            raise UserError(f"{label}: {key} is {_repr(entry)}; expected {EXPECTED[kind]}, {beside}")
        entry = entry["value"]
    numeric = isinstance(entry, (int, float)) and not isinstance(entry, bool)
    fits = {
        "flag": isinstance(entry, bool),
        "count": numeric and isinstance(entry, int) and entry > 0,
        "count or none": numeric and isinstance(entry, int) and entry >= 0,
        "number": numeric and isinstance(entry, (int, float)) and entry > 0,
    }
    if not fits[kind]:
        raise _wrong(label, key, entry, kind)
    least, most = PLAUSIBLE.get(key.partition(".")[0], (-math.inf, math.inf))
    if not least <= entry <= most:
        raise UserError(f"{label}: {key} is {entry!r}, which no GPU has; give one from {least:g} to {most:g}")
    return entry


def _source(label: str, key: str, entry: object, texts: Mapping[str, str]) -> str:
    """Where a figure is from, as one readable line."""
    fields = entry if isinstance(entry, dict) else {}
    tier, source = fields.get("tier"), fields.get("source", [])
    named = source if isinstance(source, list) else [source]
    if not all(isinstance(item, str) for item in named) or (tier is not None and not (isinstance(tier, str) and tier in TIERS)):
        what = f"source {_repr(source)} of tier {_repr(tier)}"
        raise UserError(f"{label}: {key} has {what}; expected text, and one of {', '.join(TIERS)}")
    if not named:
        return f"{label}, which names no source"
    remarks = [f"tier {tier}"] if tier else []
    if "note" in fields:
        remarks.append(str(fields["note"]))
    text = "; ".join(texts.get(item, item) for item in named) + (f" [{'; '.join(remarks)}]" if remarks else "")
    return visible(text)


def _derive_rates(figures: dict[str, Any], sources: dict[str, str]) -> None:
    """A rate that the file leaves out follows from the peak: datasheets print TFLOP/s, not FMAs per clock."""
    sms, clock_mhz = figures.get("sms"), figures.get("peak_clock_mhz")
    if sms is None or clock_mhz is None:
        return
    for dtype in DTYPE_BYTES:
        rate = f"fma_per_sm_per_clock.{dtype}"
        if rate not in figures and f"peak_flops.{dtype}" in figures:
            figures[rate] = figures[f"peak_flops.{dtype}"] / (2 * sms * clock_mhz * 1e6)
            sources[rate] = "peak_tflops / (2 x sms x peak_clock_mhz)"


def _check_together(label: str, figures: Mapping[str, Any]) -> None:
    """What no figure shows alone: a CTA cannot have more shared memory than its SM, and a peak is SMs x clock x rate."""
    cta, sm = figures["shared_memory_per_cta_bytes"], figures["shared_memory_per_sm_bytes"]
    if cta > sm:
        raise UserError(f"{label}: shared_memory_per_cta_kib is {cta / 1024:g}, more than the {sm / 1024:g} of an SM; give at most that")
    sms, clock_mhz = figures.get("sms"), figures.get("peak_clock_mhz")
    if sms is None or clock_mhz is None:
        return
    for dtype in DTYPE_BYTES:
        rate, peak = figures.get(f"fma_per_sm_per_clock.{dtype}"), figures.get(f"peak_flops.{dtype}")
        if rate is None or peak is None:
            continue
        computed = 2 * sms * clock_mhz * 1e6 * rate
        if not 1 / PEAK_AGREES <= peak / computed <= PEAK_AGREES:
            product = f"2 x sms x peak_clock_mhz x fma_per_sm_per_clock.{dtype}"
            what = f"peak_tflops.{dtype} is {peak / 1e12:g}, but {product} is {computed / 1e12:g}"
            raise UserError(f"{label}: {what}; correct one of them")
