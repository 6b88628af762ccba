"""Which schedules can run, and are worth telling apart. Each constraint is one function that returns what a schedule needs, what there
is, and the sentence that says so; pruning, `tuner explain` and the documentation all read these.

To add one: write a function of `Facts` with `@constraint`. They are applied in the order in which they stand here, and a schedule falls
to the first.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from search_spaces.checks import Check, Constraint, Facts
from search_spaces.counting import product
from search_spaces.families import family
from search_spaces.lowering import CHUNK_BYTES, FMA, TCGEN05, WGMMA, asynchronous, cdiv, has_whole_chunks, stores_by_tma
from search_spaces.occupancy import WARP_THREADS, occupancy
from search_spaces.problem import ACCUMULATOR_BYTES
from search_spaces.ring_checks import RING_CHECKS
from search_spaces.ringed import launched_warps
from search_spaces.schedule import AXES, UNORDERED
from search_spaces.streaming import MOST_LOADS, MOST_ROWS, column_sharing
from search_spaces.table import Column

LEAST_DOT_K = 16  # of 16-bit types; M and N count from 1, and are filled up to the instruction (Triton 3.6 to 3.9)
SHORT_TILE = 16  # a tile below has MMA tiles that are filled up
MAX_TILE_ELEMENTS = 2**20  # Triton's limit on the elements of one tensor
MAX_TMA_BOX = 256  # elements along one edge of a TMA box
TMA_ALIGNMENT_BYTES = 16
TMA_OFFSETS = 2**31  # elements that the 32-bit offsets of a tile of C reach, where TMA loads and pointers store
MAX_COORDINATE = 2**31  # where a tile ends
MAX_COUNTED = 2**30  # tiles, splits and steps that the kernels count
MAX_GRID_Y = 65535
TENSOR_MEMORY_COLUMNS = 512
SHORT_EXTENT = 128  # rows that do not fill two of wgmma's 64-row instructions


CONSTRAINTS: list[Constraint] = []


def constraint(function: Callable[[Facts], Check]) -> Callable[[Facts], Check]:
    CONSTRAINTS.append(Constraint(function.__name__, (function.__doc__ or "").strip().splitlines()[0], function))
    return function


def _is_power_of_two(column: Column) -> NDArray[np.bool_]:
    return np.asarray((column > 0) & (column & (column - 1) == 0))


@constraint
def family_axes(f: Facts) -> Check:
    """An axis that the family does not have stands at the value that means "not used"."""
    named, need, limit = (np.zeros(1, dtype=np.int64) for _ in range(3))
    for place, (axis, (_, unused)) in reversed(list(enumerate(AXES.items()))):
        having = [name for name in f.table.families if axis in family(name).axes]
        column = f.table.columns[axis]
        if len(having) < len(f.table.families) and (column != unused).any():
            strange = (column != unused) & ~f.table.is_family(having)
            named = np.where(strange, place, named)
            need, limit = np.where(strange, column, need), np.where(strange, unused, limit)
    sentence = "family {family} has no axis {axis}; it stands at {need}, unused is {limit}"
    return Check(sentence, need, limit, ok=need == limit, axis=named)


@constraint
def power_of_two_tile(f: Facts) -> Check:
    """Triton's tensors have edges that are powers of two; a family with a ring puts a tile's columns together from two."""
    cta_n = np.where(f.ring & (f.ring_rules.rest > 0), f.ring_rules.rest, f.table.cta_n)
    edges = np.stack(np.broadcast_arrays(f.table.cta_m, cta_n, f.table.cta_k))
    wrong = np.where(_is_power_of_two(edges), 0, edges).max(axis=0)
    nearest = 2 ** np.round(np.log2(np.maximum(wrong, 1))).astype(np.int64)
    return Check("a tile edge of {need} is no power of two; the nearest is {limit}", wrong, nearest, ok=wrong == 0)


@constraint
def least_tile(f: Facts) -> Check:
    """tl.dot takes no K below 16 for 16-bit types; a short M or N is filled up to the instruction."""
    sentence = "cta_k={need} is below the {limit} that tl.dot takes of 16-bit types"
    return Check(sentence, f.table.cta_k, LEAST_DOT_K, ok=(f.table.cta_k >= LEAST_DOT_K) | f.stream)


@constraint
def tile_elements(f: Facts) -> Check:
    """Triton limits the elements of one tensor."""
    t = f.table
    largest = np.maximum(np.maximum(t.cta_m, t.cta_n) * t.cta_k, t.cta_m * t.cta_n)
    return Check("a tile of {need} elements is over Triton's limit of {limit}", largest, MAX_TILE_ELEMENTS)


@constraint
def cta_threads(f: Facts) -> Check:
    """A CTA has at most 1024 threads."""
    return Check(
        "{warps} warps are {need} threads, a CTA has at most {limit}",
        launched_warps(f.table) * WARP_THREADS,
        f.hardware.max_threads_per_cta,
    )


@constraint
def warp_count(f: Facts) -> Check:
    """Triton takes a power of two of warps."""
    return Check("{need} warps are no power of two; give {limit} or another one", f.table.warps, 4, ok=_is_power_of_two(f.table.warps))


@constraint
def positive_axes(f: Facts) -> Check:
    """Stages, split_k, group_m and epilogue_subtile count from 1."""
    t = f.table
    least = np.minimum(np.minimum(t.stages, t.split_k), np.minimum(t.group_m, t.epilogue_subtile))
    return Check("an axis that counts from {limit} is {need}", least, 1, ok=least >= 1)


@constraint
def kernel_variants(f: Facts) -> Check:
    """The kernels have flatten 0 and 1, epilogue_subtile 1 and 2 (a ring more), and fused_reduction 0 to 2."""
    t = f.table
    fused, reduced = t.flatten > 1, t.fused_reduction > UNORDERED
    need = np.where(fused, t.flatten, np.where(reduced, t.fused_reduction, t.epilogue_subtile))
    limit = np.where(fused, 1, np.where(reduced, UNORDERED, 2))
    axes = "flatten={flatten} epilogue_subtile={epilogue_subtile} fused_reduction={fused_reduction}"
    sentence = axes + ": {need} is over the {limit} that the kernels have"
    return Check(sentence, need, limit, ok=(need <= limit) | (f.ring & ~fused & ~reduced))


@constraint
def warp_tile(f: Facts) -> Check:
    """The warp tile divides the CTA tile and holds at least one MMA: otherwise warps repeat each other's work."""
    low, grouped = f.lowering, (f.lowering.mma_version == WGMMA) | (f.lowering.mma_version == TCGEN05)
    rows = np.where(grouped, 16, low.mma_m)  # of a 64-row instruction, each warp of the group holds 16
    along_m, along_n = np.maximum(f.table.cta_m // rows, 1), np.maximum(f.table.cta_n // low.mma_n, 1)
    most = along_m * along_n
    fits = (low.warps_m <= along_m) & (low.warps_n <= along_n)
    sentence = "{need} warps for a {cta_m}x{cta_n} tile, which has MMA tiles for {limit}"
    return Check(sentence, f.table.warps, most, ok=fits | (low.mma_version == FMA))


@constraint
def accumulator_registers(f: Facts) -> Check:
    """The fp32 accumulator of a thread fits its registers; 256 of them always spill to DRAM-backed local memory."""
    sentence = "the accumulator alone takes {need} registers a thread, a thread has at most {limit}"
    return Check(sentence, f.lowering.accumulators_per_thread, f.hardware.max_registers_per_thread)


@constraint
def cta_registers(f: Facts) -> Check:
    """All threads of a CTA together find their registers in one SM."""
    least = np.minimum(f.lowering.accumulators_per_thread + 24, f.hardware.max_registers_per_thread)
    sentence = "a CTA needs at least {need} registers, an SM of {gpu} has {limit}"
    return Check(sentence, least * f.table.warps * WARP_THREADS, f.hardware.registers_per_sm)


@constraint
def shared_memory(f: Facts) -> Check:
    """Operand buffers, epilogue and barriers fit the shared memory of a CTA."""
    sentence = "needs {need} B of shared memory, {gpu} gives a CTA {limit} B"
    return Check(sentence, f.lowering.shared_memory_bytes, f.hardware.shared_memory_per_cta_bytes)


@constraint
def tensor_memory(f: Facts) -> Check:
    """tcgen05 accumulates in tensor memory, which has 512 columns of 128 lanes."""
    columns = np.where(f.lowering.mma_version == TCGEN05, cdiv(f.table.cta_m, 128) * f.table.cta_n, 0)
    return Check("the accumulator takes {need} columns of tensor memory, an SM has {limit}", columns, TENSOR_MEMORY_COLUMNS)


@constraint
def tma_hardware(f: Facts) -> Check:
    """TMA came with sm_90."""
    major, minor = f.hardware.compute_capability
    sentence = "TMA needs compute capability {need}, {gpu} has {limit}"
    return Check(sentence, 9.0, float(f"{major}.{minor}"), ok=~f.tma | f.hardware.has_tma)


@constraint
def tma_row_stride(f: Facts) -> Check:
    """TMA takes rows whose starts are multiples of 16 bytes."""
    strides = [f.problem.lda * f.problem.element_bytes, f.problem.ldb * f.problem.element_bytes]
    stride = next((s for s in strides if s % TMA_ALIGNMENT_BYTES), strides[0])
    sentence = "row stride {need} B is not a multiple of the {limit} B that TMA needs"
    return Check(sentence, stride, TMA_ALIGNMENT_BYTES, ok=~f.tma | (f.table.pad == 1) | (stride % TMA_ALIGNMENT_BYTES == 0))


@constraint
def tma_base(f: Facts) -> Check:
    """TMA takes base pointers that are multiples of 16 bytes."""
    sentence = "base pointers are multiples of {need} B, TMA needs {limit} B"
    ok = ~f.tma | (f.table.pad == 1) | (f.problem.alignment_bytes >= TMA_ALIGNMENT_BYTES)
    return Check(sentence, f.problem.alignment_bytes, TMA_ALIGNMENT_BYTES, ok=ok)


@constraint
def same_pad(f: Facts) -> Check:
    """Where rows are aligned, there is nothing to pad."""
    sentence = "pad={need} copies nothing, rows are aligned: pad={limit} is the same"
    return Check(sentence, f.table.pad, 0, ok=(f.table.pad == 0) | (f.problem.packed_bytes > 0))


@constraint
def tma_box(f: Facts) -> Check:
    """A TMA box has at most 256 elements along an edge. A ring takes each part of a tile's columns in a box of its own."""
    columns = np.where(f.ring, f.ring_rules.widest, f.table.cta_n)
    edge = np.maximum(np.maximum(f.table.cta_m, columns), f.table.cta_k)
    return Check("a TMA box edge of {need} elements is over the limit of {limit}", edge, MAX_TMA_BOX, ok=~f.tma | (edge <= MAX_TMA_BOX))


@constraint
def tma_box_bytes(f: Facts) -> Check:
    """The innermost edge of a TMA box of A or B is a multiple of 16 bytes."""
    t, swapped = f.table, f.table.swap_ab == 1
    p = f.problem  # the kernels take a dense column for a row
    a_edge = np.where(p.a_transposed and p.lda > 1, np.where(swapped, t.cta_n, t.cta_m), t.cta_k)
    b_edge = np.where(p.b_transposed and p.ldb > 1, t.cta_k, np.where(swapped, t.cta_m, t.cta_n))
    row = np.minimum(a_edge, b_edge) * p.element_bytes
    return Check("a TMA box row of {need} B is under the {limit} B that one copy moves", row, CHUNK_BYTES, ok=~f.tma | (row >= CHUNK_BYTES))


@constraint
def tma_row_offsets(f: Facts) -> Check:
    """Where TMA loads and C leaves through pointers, a tile's rows of C lie within 32-bit offsets."""
    t, p = f.table, f.problem
    apart = np.where((t.split_k > 1) & (t.fused_reduction == 0), p.n, p.ldc)
    reach = apart * np.where(t.swap_ab == 1, t.cta_n, t.cta_m) + p.n
    whole = np.where(f.ring, has_whole_chunks(p), stores_by_tma(t, p))
    by_pointers = f.tma & ~(whole & (t.split_k == 1) & (t.stream_k == 0))
    sentence = "the rows of C that a tile has span {need} elements, 32-bit offsets reach {limit}"
    return Check(sentence, reach, TMA_OFFSETS, ok=~by_pointers | (reach <= TMA_OFFSETS))


@constraint
def tile_coordinates(f: Facts) -> Check:
    """The last tile ends within 32-bit coordinates."""
    low, t = f.lowering, f.table
    ends = [low.m + t.cta_m, low.n + t.cta_n, f.problem.k + product(t.cta_k, t.split_k)]
    sentence = "the last tile may end at {need}, coordinates reach {limit}"
    return Check(sentence, np.maximum.reduce(np.broadcast_arrays(*ends)), MAX_COORDINATE)


@constraint
def counted_tiles(f: Facts) -> Check:
    """Tiles, times splits, are counted in 32 bits."""
    return Check("{need} tiles and splits are over the {limit} that are counted", product(f.lowering.tiles, f.table.split_k), MAX_COUNTED)


@constraint
def grid(f: Facts) -> Check:
    """Where splits lie along the grid's second axis, it has at most 65535."""
    sentence = "needs {need} CTAs along the second axis of the grid, the driver takes {limit}"
    return Check(sentence, f.table.split_k, MAX_GRID_Y, ok=f.tma | (f.table.split_k <= MAX_GRID_Y))


@constraint
def split_k_steps(f: Facts) -> Check:
    """Each split has work, and enough of it to fill the pipeline."""
    total = cdiv(f.problem.k, f.table.cta_k)
    last_has_work = f.lowering.k_steps * (f.table.split_k - 1) < total
    steps = np.where(last_has_work, f.lowering.k_steps, 0)
    least = np.maximum(f.table.stages, 2)
    sentence = "split_k={split_k} leaves {limit} K steps to a CTA, {need} are needed to fill {stages} stages"
    return Check(sentence, least, steps, ok=(f.table.split_k == 1) | (steps >= least))


@constraint
def workspace(f: Facts) -> Check:
    """The matrices and the fp32 parts of tiles under split-K and stream-K fit the GPU's memory."""
    parts = np.where(f.table.split_k > 1, product(f.lowering.tiles, f.table.split_k), 0)
    slots = 2 * f.table.persistent_ctas_per_sm * int(f.hardware.need("sms"))
    parts = np.where(f.table.stream_k == 1, slots, parts)
    part_bytes = product(parts, f.table.cta_m, f.table.cta_n, ACCUMULATOR_BYTES)
    need = product(f.problem.buffer_bytes) + part_bytes + product(f.table.pad, f.problem.packed_bytes)
    return Check("needs {need} B of device memory, {gpu} has {limit} B", need, f.hardware.memory_bytes)


@constraint
def idle_rows(f: Facts) -> Check:
    """Half the tile does not already cover all of M or N, where the instruction has a smaller one."""
    least_m = np.where((f.hardware.compute_capability[0] in (9, 10, 11)) & (f.tma | (f.table.cta_m >= 128)), 64, SHORT_TILE)
    least_m, least_n = np.where(f.stream, 1, least_m), np.where(f.stream, 1, SHORT_TILE)
    wide_m = (f.table.cta_m // 2 >= f.lowering.m) & (f.table.cta_m > least_m)
    wide_n = (f.table.cta_n // 2 >= f.lowering.n) & (f.table.cta_n > least_n)
    need = np.where(wide_m, f.table.cta_m, f.table.cta_n)
    have = np.where(wide_m, f.lowering.m, f.lowering.n)
    return Check(
        "a tile edge of {need} for the {limit} rows or columns there are: half of it covers them", need, have, ok=~(wide_m | wide_n)
    )


@constraint
def pipeline_depth(f: Facts) -> Check:
    """A pipeline deeper than the loop it serves holds buffers that are never filled."""
    # a fused loop prefetches across tiles, a producer of its own as well
    runs_on = (f.table.flatten == 1) | (f.ring & (f.table.persistent_ctas_per_sm > 0))
    steps = np.maximum(f.lowering.k_steps, 2)
    return Check("{need} stages for a loop of {limit} steps", f.table.stages, steps, ok=runs_on | (f.table.stages <= steps))


@constraint
def same_kernel_stages(f: Facts) -> Check:
    """Where loads are not asynchronous, stages change nothing: the smallest stands for all."""
    along_m, along_n = asynchronous(f.table, f.problem, f.hardware)
    sentence = "stages={need} is the same kernel as stages={limit}: these loads are too narrow to be asynchronous"
    return Check(sentence, f.table.stages, 2, ok=along_m | along_n | (f.table.stages <= 2) | f.stream)


@constraint
def same_raster(f: Facts) -> Check:
    """A raster group that reaches past the grid, or over a single row or column of tiles, is another group's order."""
    low = f.lowering
    covering = np.where((low.tiles_n == 1) | (low.tiles_m == 1), 1, low.tiles_m)
    smaller = np.maximum(f.table.group_m // 2, 1)  # the next smaller power of two already covers the grid
    return Check(
        "group_m={need} walks the tiles as group_m={limit} does",
        f.table.group_m,
        covering,
        ok=(f.table.group_m == 1) | (smaller < covering),
    )


@constraint
def same_persistent_grid(f: Facts) -> Check:
    """A persistent grid that gives each CTA one tile is the plain grid; flatten needs tiles to fuse."""
    slots = f.table.persistent_ctas_per_sm * int(f.hardware.need("sms"))
    work = product(f.lowering.tiles, f.table.split_k)
    persistent = f.table.persistent_ctas_per_sm > 0
    ok = np.where(persistent, work > slots, f.table.flatten == 0) | (f.table.stream_k == 1)
    return Check("{limit} tiles for {need} persistent CTAs: the plain grid without flatten is the same", slots, work, ok=ok)


@constraint
def resident_grid(f: Facts) -> Check:
    """A persistent grid asks for no more CTAs per SM than fit there at once."""
    low = f.lowering
    least = np.minimum(low.accumulators_per_thread + 24, f.hardware.max_registers_per_thread)
    least, warps = np.where(f.ring, low.registers_per_thread, least), launched_warps(f.table)
    fits = occupancy(f.hardware, warps=warps, registers_per_thread=least, shared_memory_bytes=low.shared_memory_bytes)
    sentence = "{need} persistent CTAs per SM, of which {gpu} holds {limit}"
    return Check(
        sentence, f.table.persistent_ctas_per_sm, fits.ctas_per_sm, ok=f.table.persistent_ctas_per_sm <= np.maximum(fits.ctas_per_sm, 1)
    )


@constraint
def same_epilogue(f: Facts) -> Check:
    """Split-K and stream-K store parts of tiles whole, whatever the epilogue subtile."""
    ok = (f.table.epilogue_subtile == 1) | ((f.table.split_k == 1) & (f.table.stream_k == 0))
    return Check(
        "epilogue_subtile={need} does nothing where tiles are worked on in parts: {limit} stands for it", f.table.epilogue_subtile, 1, ok=ok
    )


@constraint
def fused_reduction(f: Facts) -> Check:
    """Only split-K has parts to add in the same launch, and what adds them cannot be fused with the loop over K."""
    off = (f.table.fused_reduction > 0) & ((f.table.split_k == 1) | (f.table.flatten == 1))
    sentence = "fused_reduction with split_k={split_k} and flatten={flatten}: it needs more than {limit} split, and no flatten"
    return Check(sentence, f.table.split_k, 1, ok=~off)


@constraint
def stream_k_grid(f: Facts) -> Check:
    """Stream-K shares out K among persistent CTAs: it takes the place of split-K, and its loops cannot be fused."""
    t = f.table
    off = (t.stream_k == 1) & ((t.persistent_ctas_per_sm == 0) | (t.split_k > 1) | (t.flatten == 1))
    sentence = "stream_k with {need} CTAs per SM, split_k={split_k} and flatten={flatten}: it needs at least {limit}, and 1 and 0"
    return Check(sentence, t.persistent_ctas_per_sm, 1, ok=~off)


@constraint
def same_stream_k(f: Facts) -> Check:
    """Where tiles go round among the persistent CTAs, stream-K shares nothing."""
    slots = np.maximum(f.table.persistent_ctas_per_sm * int(f.hardware.need("sms")), 1)
    sentence = "{need} tiles go round among {limit} persistent CTAs: without stream_k it is the same"
    return Check(sentence, f.lowering.tiles, slots, ok=(f.table.stream_k == 0) | (f.lowering.tiles % slots != 0))


@constraint
def stream_k_counted(f: Facts) -> Check:
    """The K steps of all tiles, which stream-K shares out, are counted in 32 bits."""
    steps = product(f.lowering.tiles, cdiv(f.problem.k, f.table.cta_k))
    sentence = "{need} K steps of all tiles are over the {limit} that stream_k counts"
    return Check(sentence, steps, MAX_COUNTED, ok=(f.table.stream_k == 0) | (steps <= MAX_COUNTED))


@constraint
def stream_k_steps(f: Facts) -> Check:
    """A CTA's share of the K steps fills its pipeline."""
    slots = np.maximum(f.table.persistent_ctas_per_sm * int(f.hardware.need("sms")), 1)
    share = product(f.lowering.tiles, f.lowering.k_steps) // slots
    least = np.maximum(f.table.stages, 2)
    sentence = "stream_k leaves {limit} K steps to a CTA, {need} are needed to fill {stages} stages"
    return Check(sentence, least, share, ok=(f.table.stream_k == 0) | (share >= least))


@constraint
def swap_pays(f: Facts) -> Check:
    """Exchanged operands let a short M lie along the instruction's N, which may be short; of two long extents either may lie there."""
    short = (f.lowering.n <= SHORT_EXTENT) & (f.lowering.n < f.lowering.m)
    sentence = "swap_ab with {need} rows along the instruction's N: up to {limit} it pays"
    return Check(sentence, f.lowering.n, SHORT_EXTENT, ok=(f.table.swap_ab == 0) | short)


@constraint
def swapped_parts(f: Facts) -> Check:
    """The second launch of split-K adds parts of C, not of C^T."""
    off = (f.table.swap_ab == 1) & (f.table.split_k > 1) & (f.table.fused_reduction == 0) & ~f.ring
    return Check("swap_ab with split_k={need} needs fused_reduction, or split_k={limit}", f.table.split_k, 1, ok=~off)


@constraint
def stream_rows(f: Facts) -> Check:
    """A family that streams B takes up to 16 rows of A, and reads B once, twice over 8 rows: FMAs limit it beyond."""
    enough = (f.table.cta_m >= min(f.problem.m, 8)) & (f.table.cta_m <= MOST_ROWS) & (f.problem.m <= MOST_ROWS)
    sentence = "{cta_m} of {need} rows of A at a time: streaming B pays up to {limit}, 8 or all at a time"
    return Check(sentence, f.problem.m, MOST_ROWS, ok=~f.stream | enough)


@constraint
def stream_step(f: Facts) -> Check:
    """A K step of a family that streams B is whole loads of all the threads of a CTA that share a column."""
    least = np.maximum(column_sharing(f.table, f.problem)[1], 1)
    ok = ~f.stream | ((f.table.cta_k % least == 0) & (f.table.cta_k >= least))
    return Check("a K step of {need} is no multiple of the {limit} elements along K that are loaded at once", f.table.cta_k, least, ok=ok)


@constraint
def stream_loads(f: Facts) -> Check:
    """It is at most 16 loads a thread, which are unrolled."""
    least = np.maximum(column_sharing(f.table, f.problem)[1], 1)
    loads = f.table.cta_k // least * np.maximum(f.table.cta_n * least // (f.table.warps * 256), 1)
    sentence = "a K step takes {need} loads a thread, {limit} are unrolled at most"
    return Check(sentence, loads, MOST_LOADS, ok=~f.stream | (loads <= MOST_LOADS))


@constraint
def stream_splits(f: Facts) -> Check:
    """It adds its splits in the same launch."""
    sentence = "split_k={split_k} with fused_reduction={need}: this family adds its splits in the same launch, fused_reduction={limit}"
    return Check(sentence, f.table.fused_reduction, 1, ok=~f.stream | (f.table.split_k == 1) | (f.table.fused_reduction >= 1))


for check in RING_CHECKS:
    constraint(check)
