"""Bank conflicts as text and as plain data: of any tile worked out by hand, and of the tiles of one schedule."""

from __future__ import annotations

from dataclasses import dataclass

from search_spaces.banks import LANES, Access, SharedTile, access, bank, down_columns, least_padding
from search_spaces.hardware import Hardware
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule
from search_spaces.shared_layouts import PlacedTile, placed_tiles
from tuner.report import table

LANES_SHOWN = 8
GOES = {"row": "along its rows", "column": "down a column", "fragment": "a fragment of 8 rows of 16 B at a time"}


@dataclass(frozen=True, kw_only=True)
class BankQuestion:
    """how: row, column or fragment. lane_bytes: 0 for an element a lane."""

    tile: SharedTile
    how: str
    lane_bytes: int

    @property
    def access(self) -> Access:
        return access(self.tile, self.how, self.lane_bytes)

    @property
    def least_padding(self) -> int | None:
        return least_padding(self.tile, self.how, self.lane_bytes)


def bank_facts(asked: BankQuestion) -> dict[str, object]:
    """Bytes, lanes, clocks and ways; `bank_of_lane` is the bank in which each lane begins."""
    found, tile = asked.access, asked.tile
    return {
        "access": asked.how,
        "rows": tile.rows,
        "row_elements": tile.row_elements,
        "element_bytes": tile.element_bytes,
        "padding_elements": tile.padding_elements,
        "swizzle_bytes": tile.swizzle_bytes,
        "row_pitch_bytes": tile.pitch_bytes,
        "lanes": len(found.addresses),
        "lane_bytes": found.lane_bytes,
        "phases": len(found.phases),
        "ways_of_phases": list(found.phases),
        "ways": found.ways,
        "wavefronts": found.wavefronts,
        "conflicts": found.wavefronts - len(found.phases),
        "bank_of_lane": [bank(address) for address in found.addresses],
        "least_padding_elements": asked.least_padding,
    }


def bank_text(asked: BankQuestion) -> str:
    facts, tile = bank_facts(asked), asked.tile
    size = f"{tile.rows} x {tile.row_elements} elements of {tile.element_bytes} B"
    extra = f", {tile.padding_elements} left free after each row" if tile.padding_elements else ""
    extra += f", swizzled over {tile.swizzle_bytes} B" if tile.swizzle_bytes else ""
    titles = {
        "lanes": ("lanes that take part", "of 32"),
        "lane_bytes": ("bytes a lane takes at once", "B"),
        "row_pitch_bytes": ("from one row to the next", "B"),
        "phases": ("phases of 128 B without conflicts", "clock"),
        "wavefronts": ("clocks that it takes (wavefronts)", "clock"),
        "conflicts": ("bank conflicts", "clock"),
        "ways": ("ways of conflict (1: none)", "way"),
    }
    rows = [(title, unit, facts[name]) for name, (title, unit) in titles.items()]
    body = table(("figure", "unit", ">value"), rows, title=f"{size}{extra}: a warp takes it {GOES[asked.how]}")
    return "\n".join([body, _first_banks(asked.access), *_advice(asked)])


def _first_banks(found: Access) -> str:
    shown = found.addresses[:LANES_SHOWN]
    more = " ..." if len(found.addresses) > len(shown) else ""
    return f"lanes 0 to {len(shown) - 1} begin in banks {', '.join(str(bank(address)) for address in shown)}{more}"


def _advice(asked: BankQuestion) -> list[str]:
    lines, tile, found = [], asked.tile, asked.access
    if asked.how == "column" and tile.rows < LANES:
        others = down_columns(tile, found.lane_bytes).ways
        lines.append(f"{LANES - tile.rows} lanes are idle; did they go on down the next columns, it would conflict {others} ways")
    if found.ways > 1:
        padding = asked.least_padding
        cure = "no padding up to 128 B mends that" if padding is None else f"a padding of {padding} leaves none"
        lines.append(f"{found.wavefronts} clocks in place of {len(found.phases)}: {cure}")
    return lines


def placed_facts(schedule: Schedule, problem: Problem, hardware: Hardware) -> list[dict[str, object]]:
    """Of each tile of A, B and C in shared memory, in JSON's terms."""
    return [
        {
            "operand": placed.operand.upper(),
            "rows": placed.tile.rows,
            "row_elements": placed.tile.row_elements,
            "element_bytes": placed.tile.element_bytes,
            "layout": placed.name,
            "swizzle_bytes": placed.tile.swizzle_bytes,
            "access": placed.how,
            "ways": placed.ways,
        }
        for placed in placed_tiles(schedule, problem, hardware)
    ]


def placed_text(schedule: Schedule, problem: Problem, hardware: Hardware) -> str:
    """A, B and C of one schedule in shared memory."""
    placed = placed_tiles(schedule, problem, hardware)
    if not placed:
        return "shared memory: A and B go from L1 to registers, only a few sums a warp pass through it"
    columns = ("in shared memory", "rows in memory", "layout of Triton", ">swizzle B", "access", ">bank ways")
    return table(columns, [_placed_row(one) for one in placed])


def _placed_row(placed: PlacedTile) -> tuple[object, ...]:
    tile = placed.tile
    rows = f"{tile.rows} of {tile.row_elements} x {tile.element_bytes} B"
    turned = ", transposed" if "transposed = true" in placed.name or "order = [0, 1]" in placed.name else ""
    return placed.operand.upper(), rows, placed.name.split("<")[0] + turned, tile.swizzle_bytes or "-", placed.how, placed.ways
