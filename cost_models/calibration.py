"""The few constants of a chip that no datasheet gives: what share of a rate a good kernel reaches, and how long a request waits.

They stand in `cost_models/calibrations/`, one YAML file a GPU or an architecture, with the data they came from. A GPU without a file
uses its architecture's, and one whose architecture has none the newest; `Calibration.name` says which.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from importlib import resources

import yaml

from search_spaces.errors import UserError
from search_spaces.hardware import Hardware

FALLBACK = "sm_90"


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Seconds, shares of the published rate (0..1], and bytes."""

    name: str
    source: str
    launch_seconds: float  # from one kernel's start to the next in a graph, with nothing to do
    reduction_seconds: float  # of the second launch that sums split-K partials, with nothing to sum
    tensor_core_share: float  # of the published peak that a steady main loop sustains under the power limit
    mma_sync_share: float  # of the tensor cores' rate that mma.sync reaches on this chip
    dram_share: float
    l2_bytes_per_clock_per_sm: float
    load_latency_seconds: float  # of the first byte of a tile
    cta_seconds: float  # set-up of a CTA that nothing overlaps
    step_seconds: float  # barrier and issue of a K step that the tensor cores wait for
    pointer_issue_share: float  # how much of the tensor cores' time cp.async address arithmetic leaves
    store_share: float  # of DRAM bandwidth that an epilogue reaches
    l2_resident_share: float  # of L2 that an operand may take and still be found there by a later wave


def load_calibration(hardware: Hardware) -> Calibration:
    """The constants of this GPU, of its architecture, or of the fallback."""
    major, minor = hardware.compute_capability
    folder = resources.files("cost_models").joinpath("calibrations")
    for name in (hardware.name, f"sm_{major}{minor}", FALLBACK):
        file = folder.joinpath(f"{name}.yaml")
        if file.is_file():
            return parse_calibration(name, file.read_text(encoding="utf-8"))
    raise UserError(f"no calibration for {hardware.name} and no {FALLBACK}.yaml in cost_models/calibrations; reinstall the package")


def parse_calibration(name: str, text: str) -> Calibration:
    content = yaml.safe_load(text)
    wanted = [field.name for field in fields(Calibration) if field.name != "name"]
    if not isinstance(content, dict) or sorted(content) != sorted(wanted):
        raise UserError(f"calibration {name} must give exactly {', '.join(wanted)}")
    return Calibration(name=name, **content)
