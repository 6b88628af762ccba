"""What Triton makes of a schedule: MMA instruction, warp grid, operand buffers, shared memory and registers, before anything is compiled.

The rules are those of `AccelerateMatmul.cpp`, `Utility.cpp` and the pipeliner of Triton 3.6 to 3.9, confirmed by compiling
(tests/test_lowering.py keeps compiled numbers). In plain Triton the warp grid and the instruction follow from the CTA tile and `warps`;
they are computed here and nowhere else.
"""

from __future__ import annotations

import importlib.metadata
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from search_spaces.counting import product
from search_spaces.families import families
from search_spaces.hardware import Hardware
from search_spaces.problem import ACCUMULATOR_BYTES, Problem
from search_spaces.ringed import RingRules, lowered_ring, ringed
from search_spaces.schedule import Schedule, Tile
from search_spaces.streaming import streamed, streams
from search_spaces.table import Column, ScheduleTable

Flags = NDArray[np.bool_]

FMA, MMA_SYNC, WGMMA, TCGEN05 = 0, 2, 3, 5  # Triton's own version numbers
MMA_NAMES = {FMA: "fma", MMA_SYNC: "mma.sync", WGMMA: "wgmma", TCGEN05: "tcgen05"}
MBARRIER_BYTES = 8
CHUNK_BYTES = 16  # the least that TMA moves, and the most that one load or store of a thread does
CP_ASYNC_LEAST_BYTES = 4  # a narrower copy is not issued asynchronously
BASE_REGISTERS = 28  # loop state and addresses of a compiled kernel that holds nothing else; median over the compiled landscape
PARTIAL_REGISTERS = 24  # addresses and masks of partial sums that TMA does not store
STREAM_REGISTERS = 45  # which tile, which steps, whose parts; compiled 128x256, 128x128 and 64x128 tiles
FLATTEN_REGISTERS = 8  # the tile's coordinates live through the fused loop


@dataclass(frozen=True)
class Lowering:
    """One value per row of the table it was made from."""

    mma_version: Column
    mma_m: Column
    mma_n: Column
    mma_k: Column
    warps_m: Column
    warps_n: Column
    buffers: Column  # copies of the A and B tile in shared memory; of two numbers the smaller
    operand_bytes: NDArray[np.int64]  # all buffers of A and B
    shared_memory_bytes: NDArray[np.int64]
    accumulators_per_thread: Column  # registers that the fp32 accumulator takes in a thread; none where it lies in tensor memory
    registers_per_thread: Column  # estimate; the compiled number replaces it
    k_steps: Column  # K tiles that one CTA works through for one output tile
    tiles: NDArray[np.int64]  # output tiles, without split-K
    tiles_m: Column
    tiles_n: Column
    m: Column  # extents as the kernel sees them: exchanged where the operands are
    n: Column

    def warp_tile(self, row: int, cta: Tile) -> Tile:
        return Tile(-(-cta.m // int(self.warps_m[row])), -(-cta.n // int(self.warps_n[row])), cta.k)

    def mma_tile(self, row: int) -> Tile:
        return Tile(int(self.mma_m[row]), int(self.mma_n[row]), int(self.mma_k[row]))

    def instruction(self, row: int) -> str:
        return f"{MMA_NAMES[int(self.mma_version[row])]} {self.mma_tile(row)}"


def cdiv(a: NDArray[np.int64] | int, b: NDArray[np.int64] | int) -> Column:
    return np.asarray(-(-np.asarray(a) // np.asarray(b)), dtype=np.int64)


def loads_by_tma(table: ScheduleTable) -> Flags:
    return table.is_family(name for name, family in families().items() if family.loads in ("tma", "ring"))


def has_whole_chunks(problem: Problem) -> bool:
    """TMA writes whole 16-byte chunks, so rows of C must be whole chunks long and start at one; otherwise C leaves through pointers."""
    return problem.row_alignment_bytes("c") == 16 and problem.n * problem.out_bytes % 16 == 0


def stores_by_tma(table: ScheduleTable, problem: Problem) -> Flags:
    """Rows whose box of C, where TMA stores it, is whole chunks wide as well."""
    columns = np.where(table.swap_ab == 1, table.cta_m, table.cta_n // np.maximum(table.epilogue_subtile, 1))
    return np.asarray(has_whole_chunks(problem) & (columns * problem.out_bytes >= CHUNK_BYTES))


def load_vector_bytes(problem: Problem, operand: str) -> int:
    """Bytes that one pointer load of `a` or `b` may take at once: all that the starts of its rows are known to be a multiple of, and
    their length too, past which loads are masked or wrap."""
    columns = problem.a_columns if operand == "a" else problem.b_columns
    return math.gcd(problem.row_alignment_bytes(operand), columns * problem.element_bytes)


def lower(table: ScheduleTable, problem: Problem, hardware: Hardware) -> Lowering:
    """The lowering of every row for this problem on this chip."""
    version = _mma_version(table, problem, hardware)
    warps_m, warps_n = _warp_grid(table, version)
    mma_n = _mma_n(table, version)
    tma = loads_by_tma(table)
    steps = cdiv(cdiv(problem.k, table.cta_k), table.split_k)
    m, n = np.where(table.swap_ab == 1, problem.n, problem.m), np.where(table.swap_ab == 1, problem.m, problem.n)
    tiles_m, tiles_n = cdiv(m, table.cta_m), cdiv(n, table.cta_n)
    buffers_m, buffers_n = _buffers(table, problem, hardware, version, tma)
    operand_bytes = product(table.cta_k, buffers_m * table.cta_m + buffers_n * table.cta_n, problem.element_bytes)
    # mma.sync works on no less than 16x8: what is missing is filled up
    accumulators = np.where(version == FMA, table.cta_m * table.cta_n, np.maximum(table.cta_m, 16) * np.maximum(table.cta_n, 8))
    accumulators = accumulators // (32 * table.warps)
    lowered = Lowering(
        mma_version=version,
        mma_m=np.where(version == TCGEN05, np.minimum(table.cta_m, 128), np.where(version == WGMMA, 64, 16)),
        mma_n=mma_n,
        mma_k=np.where(version == FMA, 1, 32 // problem.element_bytes),
        warps_m=warps_m,
        warps_n=warps_n,
        buffers=np.minimum(buffers_m, buffers_n),
        operand_bytes=operand_bytes,
        shared_memory_bytes=_shared_memory(table, problem, tma, version, operand_bytes, warps_n),
        accumulators_per_thread=np.where(version == TCGEN05, 0, accumulators),
        registers_per_thread=_registers(table, problem, version, tma, accumulators),
        k_steps=steps,
        tiles=tiles_m * tiles_n,
        tiles_m=tiles_m,
        tiles_n=tiles_n,
        m=m,
        n=n,
    )
    ring = ringed(table)
    if ring.any():
        own = lowered_ring(RingRules(table, problem, has_whole_chunks(problem))) | {"mma_version": np.full(table.shape, WGMMA)}
        lowered = _replaced(lowered, ring, own)
    rows = streams(table)
    if rows.any():
        lowered = _replaced(lowered, rows, streamed(table, problem, hardware) | {"mma_version": np.full(table.shape, FMA)})
    return lowered


def _replaced(lowered: Lowering, rows: Flags, own: dict[str, NDArray[np.int64]]) -> Lowering:
    return replace(lowered, **{name: np.where(rows, column, getattr(lowered, name)) for name, column in own.items()})


def lower_one(schedule: Schedule, problem: Problem, hardware: Hardware) -> Lowering:
    return lower(ScheduleTable.of([schedule]), problem, hardware)


def _mma_version(table: ScheduleTable, problem: Problem, hardware: Hardware) -> Column:
    """`AccelerateMatmul.cpp`: the newest instruction that the tile is legal for; older cores than sm_80 get FMAs from Triton 3.3 on."""
    whole_m, whole_n = table.cta_m % 64 == 0, table.cta_n % narrowest_grouped_n() == 0
    deep = table.cta_k * problem.element_bytes >= 32
    fallback = MMA_SYNC if hardware.has_triton_mma and problem.element_bytes == 2 else FMA
    major = hardware.compute_capability[0]
    if problem.element_bytes != 2 or major not in (9, 10, 11):
        return np.full_like(table.cta_m, fallback)
    if major == 9:
        return np.where(whole_m & whole_n & deep & (table.warps % 4 == 0), WGMMA, fallback)
    return np.where(whole_m & whole_n & deep & _one_of(table.warps, (4, 8)), TCGEN05, fallback)


@cache
def narrowest_grouped_n() -> int:
    """What Triton wants N to be a multiple of for wgmma and tcgen05: 16 before 3.8; as the newest does where none is installed."""
    try:
        installed = re.match(r"(\d+)\.(\d+)", importlib.metadata.version("triton"))
    except importlib.metadata.PackageNotFoundError:
        return 8
    return 16 if installed and (int(installed[1]), int(installed[2])) < (3, 8) else 8


def _one_of(column: Column, values: Iterable[int]) -> Flags:
    return np.asarray(np.isin(column, list(values)))


def _warp_grid(table: ScheduleTable, version: Column) -> tuple[Column, Column]:
    """Warps along M and N. mma.sync balances the repetitions of 16x8; wgmma stacks warp groups along M while rows last, then along N."""
    grouped = (version == WGMMA) | (version == TCGEN05)
    warps_m = np.where(grouped, np.minimum(4, table.warps), 1)
    warps_n = np.ones_like(warps_m)
    reps_m, reps_n = cdiv(table.cta_m, 16), cdiv(table.cta_n, 8)
    for _ in range(6):  # up to 64 warps
        grow = warps_m * warps_n < table.warps
        along_m = np.where(grouped, table.cta_m > 16 * warps_m, reps_m >= reps_n)
        grow_m, grow_n = grow & along_m, grow & ~along_m
        warps_m, warps_n = np.where(grow_m, warps_m * 2, warps_m), np.where(grow_n, warps_n * 2, warps_n)
        reps_m, reps_n = np.where(grow_m, np.maximum(reps_m // 2, 1), reps_m), np.where(grow_n, np.maximum(reps_n // 2, 1), reps_n)
    return warps_m, warps_n


def _mma_n(table: ScheduleTable, version: Column) -> Column:
    """wgmma takes the widest legal N of a warp group's share of the tile; tcgen05 the tile's; mma.sync 8."""
    groups_n = np.maximum(table.warps // np.maximum(table.cta_m // 16, 1), 1)
    wgmma_n = np.minimum(np.maximum(table.cta_n // groups_n, 8), 256)
    return np.where(version == WGMMA, wgmma_n, np.where(version == TCGEN05, np.minimum(table.cta_n, 256), 8))


def asynchronous(table: ScheduleTable, problem: Problem, hardware: Hardware) -> tuple[Flags, Flags]:
    """Whether the operand along the tile's M, and that along its N, is copied to shared memory without passing through registers: by TMA,
    or where each thread has at least 4 bytes to load at once."""
    wide = {x: hardware.has_cp_async and load_vector_bytes(problem, x) >= CP_ASYNC_LEAST_BYTES for x in ("a", "b")}
    least = 32 * table.warps * CP_ASYNC_LEAST_BYTES
    swapped, tma = table.swap_ab == 1, loads_by_tma(table)
    enough_m, enough_n = (product(edge, table.cta_k, problem.element_bytes) >= least for edge in (table.cta_m, table.cta_n))
    along_m, along_n = np.where(swapped, wide["b"], wide["a"]), np.where(swapped, wide["a"], wide["b"])
    return np.asarray(tma | (along_m & enough_m)), np.asarray(tma | (along_n & enough_n))


def _buffers(table: ScheduleTable, problem: Problem, hardware: Hardware, version: Column, tma: Flags) -> tuple[Column, Column]:
    """Copies of the operand tile along M, and of that along N. wgmma and tcgen05 read shared memory while the next tile lands, which takes
    one buffer more than mma.sync. What is not loaded asynchronously has one, and under tcgen05, which reads it meanwhile, a second."""
    ring = np.where((version == WGMMA) | (version == TCGEN05), table.stages, np.maximum(table.stages - 1, 1))
    alone = np.where(version == TCGEN05, np.clip(table.stages, 1, 2), 1)
    along_m, along_n = asynchronous(table, problem, hardware)
    return np.where(along_m, ring, alone), np.where(along_n, ring, alone)


def _shared_memory(
    table: ScheduleTable, problem: Problem, tma: Flags, version: Column, operand_bytes: NDArray[np.int64], warps_n: Column
) -> NDArray[np.int64]:
    """Bytes of shared memory of a CTA, as Triton's allocator ends up with.

    Operands and what the epilogue needs share memory where the operands are dead by then; in a fused loop over tiles they never are.
    Exact for nearly all schedules that were compiled to find the rules; the rest are off by less than one fp32 output tile, mostly too
    high. tests/test_lowering.py keeps compiled numbers, and `tuner explain` counts false accepts and rejects.
    """
    elements = table.cta_m * table.cta_n
    in_parts = (table.split_k > 1) | (table.stream_k == 1)
    staged = tma & ~in_parts & stores_by_tma(table, problem)
    store_bytes = np.where(staged, elements * problem.out_bytes // table.epilogue_subtile, 0)
    # a CTA that goes on to its next tile stages C beside the operands, one that ends in their place
    apart = table.persistent_ctas_per_sm > 0
    # splitting the fp32 accumulator in halves moves it between the warps that share N
    halved = staged & (version == WGMMA) & (table.epilogue_subtile > 1) & (warps_n > 1)
    regroup_bytes = np.where(halved, elements * ACCUMULATOR_BYTES // 2, 0)
    fused = table.flatten == 1
    direct = staged | (tma & (version == WGMMA) & ~fused)
    rows_bytes = np.where(direct, 0, _row_bytes(table, problem, tma, version, in_parts))
    beside = np.where(fused, regroup_bytes + rows_bytes + store_bytes, np.where(apart, store_bytes, 0))
    after = np.where(fused, 0, np.maximum(regroup_bytes, np.maximum(rows_bytes, np.where(apart, 0, store_bytes))))
    barriers = _barrier_bytes(table, tma, version)
    through_pointers = (version == TCGEN05) & ~tma  # nothing of the loop, barriers included, is left when C is put into rows
    together = np.where(through_pointers, np.maximum(operand_bytes + barriers, after), np.maximum(operand_bytes, after) + barriers)
    return np.asarray(together + beside)


def _row_bytes(table: ScheduleTable, problem: Problem, tma: Flags, version: Column, in_parts: Flags) -> NDArray[np.int64]:
    """What an accumulator that leaves through pointers takes to be put into whole rows first, a long one in parts."""
    elements = table.cta_m * table.cta_n
    each = np.where(in_parts, ACCUMULATOR_BYTES, problem.out_bytes)
    long = elements // (32 * table.warps) > np.where(version == WGMMA, 16, 8)
    halves = tma & long & ((version != WGMMA) | (table.warps == 4))
    # from tensor memory, in as many parts as a thread's store has words
    row_starts = np.where(in_parts, math.gcd(problem.n * ACCUMULATOR_BYTES, problem.alignment_bytes, CHUNK_BYTES), _store_bytes(problem))
    dense = in_parts & ((table.stream_k == 1) | (table.fused_reduction > 0))
    words = np.where(dense & (problem.alignment_bytes >= CHUNK_BYTES), 4, np.maximum(row_starts // 4, 1))
    turns = np.maximum(table.cta_m // np.maximum(32 * table.warps, 1), 1)  # 4 warps read 128 rows of tensor memory at once
    parts = np.where(version == TCGEN05, np.where(tma, 4, words * turns), np.where(halves, 2, 1))
    as_held = (version == TCGEN05) & ~tma & (table.swap_ab == 1) & ~in_parts  # C^T leaves tensor memory by rows already
    return np.where(as_held, 0, elements * each // parts)


def _store_bytes(problem: Problem) -> int:
    """Bytes of a row of C that a thread may store at once."""
    return math.gcd(problem.row_alignment_bytes("c"), problem.n * problem.out_bytes)


def _barrier_bytes(table: ScheduleTable, tma: Flags, version: Column) -> NDArray[np.int64]:
    """One barrier a buffer that TMA fills; tcgen05 has two of its own, and one for all where nothing is pipelined."""
    buffers = np.where((version == WGMMA) | (version == TCGEN05), table.stages, np.maximum(table.stages - 1, 1))
    filled = np.where(tma, MBARRIER_BYTES * buffers, 0)
    own = np.where(table.stages > 1, cdiv(filled, 16) * 16 + 2 * MBARRIER_BYTES, MBARRIER_BYTES)
    return np.where(version == TCGEN05, own, filled)


def _registers(table: ScheduleTable, problem: Problem, version: Column, tma: Flags, accumulators: NDArray[np.int64]) -> Column:
    """Registers a thread is expected to need: accumulator, fragments of A and B (mma.sync), 64-bit addresses (pointer loads), loop
    state."""
    threads = 32 * table.warps
    vectors = table.cta_k * (table.cta_m + table.cta_n) * problem.element_bytes // (16 * threads)
    address_registers = np.where(tma, 0, 2 * vectors)
    fragment_registers = np.where(
        version == MMA_SYNC, (cdiv(table.cta_m, 16) * 4 + cdiv(table.cta_n, 8) * 2) // np.maximum(table.warps // 2, 1), 0
    )
    partial_registers = np.where(tma & (table.split_k > 1), PARTIAL_REGISTERS, 0)
    partial_registers = np.where(table.stream_k == 1, STREAM_REGISTERS, partial_registers)
    total = accumulators + partial_registers + BASE_REGISTERS + FLATTEN_REGISTERS * table.flatten + address_registers + fragment_registers
    return np.asarray(total, dtype=np.int64)
