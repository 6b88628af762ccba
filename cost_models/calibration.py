"""The few constants of a chip that no datasheet gives: what share of a rate a good kernel reaches, and how long a request waits.

They stand in YAML files, one a GPU or an architecture, with the data they came from; `calibration_files` finds and writes them, `fitting`
fits them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, get_type_hints

from search_spaces.errors import UserError
from search_spaces.plain_text import shown, visible
from search_spaces.yaml_text import read_yaml

FALLBACK = "first_guess"


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Seconds, clocks of an SM, shares of the published rate (0..1], and bytes. The bounds beside each are the fit's."""

    name: str
    source: str
    launch_seconds: Annotated[float, (1e-6, 5e-6)]  # from one kernel's start to the next in a graph, with nothing to do
    reduction_seconds: Annotated[float, (5e-7, 5e-6)]  # of the second launch that sums split-K partials, with nothing to sum
    tensor_core_share: Annotated[float, (0.5, 1.0)]  # of the published peak that a steady main loop sustains under the power limit
    mma_sync_share: Annotated[float, (0.3, 1.0)]  # of the tensor cores' rate that mma.sync reaches on a chip with a wider instruction
    pointer_issue_share: Annotated[float, (0.5, 1.0)]  # how much of the tensor cores' time pointer loads leave them
    dram_share: Annotated[float, (0.8, 0.97)]
    l2_bytes_per_clock_per_sm: Annotated[float, (15.0, 64.0)]
    merging_ctas: Annotated[float, (4.0, 40.0)]  # neighbours whose requests for the same line L2 serves at once
    load_latency_seconds: Annotated[float, (2e-7, 2e-6)]  # of the first byte of a tile
    load_seconds_per_kib: Annotated[float, (1e-10, 5e-8)]  # and of each KiB of it
    step_clocks: Annotated[float, (10.0, 400.0)]  # of a scheduler for one warp's K step
    copy_clocks: Annotated[float, (0.5, 60.0)]  # of a scheduler for a warp-wide 16-byte copy and its address
    missing_row_clocks: Annotated[float, (1.0, 20.0)]  # of TMA to zero 128 bytes past the end
    hot_line_clocks: Annotated[float, (0.02, 2.0)]  # of L2 to serve the same line once more
    store_share: Annotated[float, (0.2, 1.0)]  # of DRAM bandwidth that an epilogue reaches
    l2_resident_share: Annotated[float, (0.1, 1.0)]  # of L2 that an operand may take and still be found there by a later wave


def constants() -> dict[str, tuple[float, float]]:
    """Names of the constants, and their bounds."""
    hints = get_type_hints(Calibration, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}


def parse_calibration(name: str, text: str) -> Calibration:
    """What a calibration's file says: its source and every constant, each a number above 0. Raises UserError."""
    content = read_yaml(f"calibration {name}", text)
    wanted = ["source", *constants()]
    if not isinstance(content, dict) or sorted(content) != sorted(wanted):
        raise UserError(f"calibration {name} must give exactly {', '.join(wanted)}")
    if not isinstance(content["source"], str):
        raise UserError(f"calibration {name}: source is {shown(content['source'], quotes=False)}; give a line of text")
    for constant in constants():
        value = content[constant]
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise UserError(f"calibration {name}: {constant} is {shown(value, quotes=False)}, no number above 0")
    return Calibration(name=name, **{**content, "source": visible(content["source"])})
