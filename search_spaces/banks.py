"""How many ways a warp conflicts when it reads or writes a tile in shared memory: arithmetic for any tile, padding, swizzle and access.

Shared memory has 32 banks of 4 bytes, and each gives one word a clock. A warp's access goes in phases of 128 bytes: all 32 lanes together
with up to 4 bytes a lane, 16 with 8, 8 with 16. Within a phase lanes that want the same word get it together; lanes that want different
words of one bank wait for each other, and the most words that one bank has to give is how many ways the phase conflicts. The addresses are
those of every architecture since Volta; what is left out is that hardware may join two phases that want the same words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from search_spaces.errors import UserError

BANKS, WORD_BYTES, LANES = 32, 4, 32
PHASE_BYTES = BANKS * WORD_BYTES
ELEMENT_BYTES = (1, 2, 4, 8, 16)  # powers of two: no element lies across two words, and what a lane reads at once is one of these too
SWIZZLES = (0, 32, 64, 128)  # bytes; 0 is none
CHUNK_BYTES = 16  # what a swizzle moves as a whole, what a lane reads at most, and a row of an 8x8 matrix of ldmatrix
FRAGMENT_ROWS = 8
REPEAT_BYTES = 1024  # after which the widest swizzle begins anew
MOST_ELEMENTS = 65536  # of a row, of rows, of padding: more than any shared memory holds


@dataclass(frozen=True, kw_only=True)
class SharedTile:
    """Rows of neighbouring elements in shared memory.

    padding_elements: left free after each row. swizzle_bytes: rows as long, or blocks of that width of longer rows, have their 16-byte
    chunks exchanged by XOR with the number of the 128-byte line, as TMA's swizzles and CUTLASS's Swizzle<1|2|3, 4, 3> do for 32, 64, 128.
    """

    rows: int
    row_elements: int
    element_bytes: int
    padding_elements: int = 0
    swizzle_bytes: int = 0

    def __post_init__(self) -> None:
        if self.element_bytes not in ELEMENT_BYTES:
            raise UserError(f"an element of {self.element_bytes} B: give one of {', '.join(map(str, ELEMENT_BYTES))}")
        for what, count, least in (("elements a row", self.row_elements, 1), ("rows", self.rows, 1), ("padding", self.padding_elements, 0)):
            if not least <= count <= MOST_ELEMENTS:
                raise UserError(f"{what}: {count} is outside {least}..{MOST_ELEMENTS}")
        if self.swizzle_bytes not in SWIZZLES:
            raise UserError(f"a swizzle of {self.swizzle_bytes} B: give 32, 64 or 128, or 0 for none")
        if self.swizzle_bytes and self.padding_elements:
            raise UserError(f"a padding of {self.padding_elements} with a swizzle of {self.swizzle_bytes} B: give one of them")
        width = self.swizzle_bytes if self.row_bytes > self.swizzle_bytes else CHUNK_BYTES
        if self.swizzle_bytes and self.row_bytes % width:
            raise UserError(
                f"a row of {self.row_bytes} B does not lie in chunks that a swizzle of {self.swizzle_bytes} B exchanges; give rows of"
                f" {-(-self.row_bytes // width) * width // self.element_bytes} elements, or no swizzle"
            )

    @property
    def row_bytes(self) -> int:
        """Without the padding."""
        return self.row_elements * self.element_bytes

    @property
    def pitch_bytes(self) -> int:
        """From one row to the next; of a row in blocks, from one row of a block to the next."""
        if self.swizzle_bytes:
            return min(self.row_bytes, self.swizzle_bytes)
        return self.row_bytes + self.padding_elements * self.element_bytes

    def address(self, row: int, byte: int) -> int:
        """Bytes from the start of the tile to a byte of a row."""
        if not self.swizzle_bytes:
            return row * self.pitch_bytes + byte
        block, within = divmod(byte, self.pitch_bytes)
        block_bytes = -(-self.rows * self.pitch_bytes // REPEAT_BYTES) * REPEAT_BYTES
        place = block * block_bytes + row * self.pitch_bytes + within
        return place ^ (place // PHASE_BYTES * CHUNK_BYTES & (self.swizzle_bytes - CHUNK_BYTES))


@dataclass(frozen=True)
class Access:
    """What the lanes of a warp read or write at once, in bytes from the start of a tile; lanes past the last one are idle."""

    lane_bytes: int
    addresses: tuple[int, ...]

    @property
    def phases(self) -> tuple[int, ...]:
        """Ways of each phase."""
        together = min(PHASE_BYTES // max(self.lane_bytes, WORD_BYTES), LANES)
        return tuple(_ways(self.addresses[first : first + together], self.lane_bytes) for first in range(0, len(self.addresses), together))

    @property
    def ways(self) -> int:
        """Words that the busiest bank gives one after another in the worst phase; 1 is no conflict."""
        return max(self.phases)

    @property
    def wavefronts(self) -> int:
        """Clocks that the access takes of shared memory."""
        return sum(self.phases)


def bank(address: int) -> int:
    return address // WORD_BYTES % BANKS


def _ways(addresses: Sequence[int], lane_bytes: int) -> int:
    words = {word for a in addresses for word in range(a // WORD_BYTES, (a + lane_bytes - 1) // WORD_BYTES + 1)}
    counts = [0] * BANKS
    for word in words:
        counts[word % BANKS] += 1
    return max(counts)


def along_rows(tile: SharedTile, lane_bytes: int) -> Access:
    """Lanes beside each other take `lane_bytes` beside each other, and go on to the next row."""
    _check_lane(tile, lane_bytes)
    across = tile.row_bytes // lane_bytes
    lanes = range(min(LANES, across * tile.rows))
    return Access(lane_bytes, tuple(tile.address(lane // across, lane % across * lane_bytes) for lane in lanes))


def down_column(tile: SharedTile, lane_bytes: int) -> Access:
    """Each lane takes the start of a row of its own. Where there are fewer rows than lanes, the others are idle."""
    _check_lane(tile, lane_bytes)
    return Access(lane_bytes, tuple(tile.address(row, 0) for row in range(min(LANES, tile.rows))))


def down_columns(tile: SharedTile, lane_bytes: int) -> Access:
    """As `down_column`, but lanes that find no row left go on at the top of the next column."""
    _check_lane(tile, lane_bytes)
    lanes = range(min(LANES, tile.rows * (tile.row_bytes // lane_bytes)))
    return Access(lane_bytes, tuple(tile.address(lane % tile.rows, lane // tile.rows * lane_bytes) for lane in lanes))


def fragment(tile: SharedTile) -> Access:
    """Matrices of 8 rows of 16 bytes: what ldmatrix and stmatrix move, four at a time, what the lanes of a warp hold of an operand of
    mma.sync, and a core matrix of wgmma.

    A lane names 16 bytes where rows start at multiples of them, as ldmatrix wants it; else each takes its own 4, or fewer, of a row.
    """
    if tile.rows < FRAGMENT_ROWS or tile.row_bytes < CHUNK_BYTES:
        raise UserError(
            f"a tile of {tile.rows} rows of {tile.row_bytes} B holds no fragment; give at least {FRAGMENT_ROWS} rows and"
            f" {-(-CHUNK_BYTES // tile.element_bytes)} elements a row"
        )
    if tile.pitch_bytes % CHUNK_BYTES == 0:
        return matrices(tile)
    lane_bytes = next(size for size in (4, 2, 1) if tile.pitch_bytes % size == 0)
    return Access(lane_bytes, tuple(tile.address(lane // 4, lane % 4 * WORD_BYTES) for lane in range(LANES)))


def matrices(tile: SharedTile) -> Access:
    """Two by two matrices, or as many as the tile has, of 8 rows of 16 bytes, or of as much as it has; a phase each."""
    down, across = max(min(tile.rows // FRAGMENT_ROWS, 2), 1), max(min(tile.row_bytes // CHUNK_BYTES, 2), 1)
    corners = [(FRAGMENT_ROWS * i, CHUNK_BYTES * j) for j in range(across) for i in range(down)]
    rows = range(min(FRAGMENT_ROWS, tile.rows))
    return Access(min(CHUNK_BYTES, tile.row_bytes), tuple(tile.address(top + row, left) for top, left in corners for row in rows))


def _check_lane(tile: SharedTile, lane_bytes: int) -> None:
    """A lane reads aligned, and nothing that lies beyond a row."""
    if lane_bytes not in ELEMENT_BYTES or lane_bytes < tile.element_bytes:
        sizes = ", ".join(str(size) for size in ELEMENT_BYTES if size >= tile.element_bytes)
        raise UserError(f"{lane_bytes} B a lane of elements of {tile.element_bytes} B: give one of {sizes}")
    for what, size in (("a row has", tile.row_bytes), ("rows start every", tile.pitch_bytes)):
        if size % lane_bytes:
            raise UserError(
                f"{what} {size} B, no multiple of the {lane_bytes} B that a lane takes at once; give other rows, padding or bytes a lane"
            )


ACCESSES = ("row", "column", "fragment")


def access(tile: SharedTile, how: str, lane_bytes: int = 0) -> Access:
    """One of ACCESSES; lane_bytes: 0 takes an element a lane."""
    if how == "fragment":
        if lane_bytes:
            raise UserError(f"{lane_bytes} B a lane of a fragment: its lanes take what its rows allow; leave the bytes a lane out")
        return fragment(tile)
    if how not in ACCESSES:
        raise UserError(f"no access named {how!r}; known: {', '.join(ACCESSES)}")
    return (along_rows if how == "row" else down_column)(tile, lane_bytes or tile.element_bytes)


def least_padding(tile: SharedTile, how: str, lane_bytes: int = 0) -> int | None:
    """The fewest elements after each row, up to 128 bytes, with which nothing conflicts; None where none help."""
    for padding in range(PHASE_BYTES // tile.element_bytes + 1):
        padded = replace(tile, padding_elements=padding, swizzle_bytes=0)
        size = CHUNK_BYTES if how == "fragment" else lane_bytes or tile.element_bytes
        if padded.pitch_bytes % size == 0 and access(padded, how, lane_bytes).ways == 1:
            return padding
    return None
