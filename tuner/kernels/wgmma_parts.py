"""What the kernels of the family `wgmma` are put together from, on the device: the producer and its ring, the steps of a consumer, and
the way out of an accumulator."""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from tuner.kernels.raster import tile_of


@gluon.jit
def copy_in(descriptor, row, column, barrier, buffer):
    load: gl.constexpr = getattr(tma, "async_load" if hasattr(tma, "async_load") else "async_copy_global_to_shared")  # until Triton 3.6
    load(descriptor, [row, column], barrier, buffer)


@gluon.jit
def copy_out(descriptor, row, column, buffer):
    store: gl.constexpr = getattr(tma, "async_store" if hasattr(tma, "async_store") else "async_copy_shared_to_global")  # until Triton 3.6
    store(descriptor, [row, column], buffer)


@gluon.jit
def tile_buffers(descriptor, COUNT: gl.constexpr):
    """Shared memory for so many of the descriptor's boxes."""
    shape: gl.constexpr = descriptor.block_type.shape
    return gl.allocate_shared_memory(descriptor.dtype, [COUNT, shape[0], shape[1]], descriptor.layout)


@gluon.jit
def parts_of(first, rest):
    """What there is for each part of a tile's columns."""
    parts = (first,)
    if rest is not None:
        parts += (rest,)  # type: ignore[assignment]
    return parts


@gluon.jit
def part_buffers(descriptors, COUNT: gl.constexpr, COUNT_OF_REST: gl.constexpr):
    buffers = ()
    for i in gl.static_range(len(descriptors)):
        buffers += (tile_buffers(descriptors[i], COUNT if i == 0 else COUNT_OF_REST),)  # type: ignore[assignment]
    return buffers


@gluon.jit
def barriers(COUNT: gl.constexpr, SETS: gl.constexpr):
    """So many sets of so many mbarriers, a phase of which takes one arrival."""
    made = ()
    for _ in gl.static_range(SETS):
        made += (gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout()),)  # type: ignore[assignment]
    for i in gl.static_range(COUNT):
        for j in gl.static_range(SETS):
            mbarrier.init(made[j].index(i), count=1)
    return made


@gluon.jit
def zero_part(CTA_M: gl.constexpr, b_buffers, B_TRANSPOSED: gl.constexpr, LAYOUTS: gl.constexpr, PART: gl.constexpr):
    buffers = b_buffers[PART]
    WIDTH: gl.constexpr = buffers.shape[1] if B_TRANSPOSED else buffers.shape[2]
    LAYOUT: gl.constexpr = LAYOUTS[PART]
    return gl.zeros([CTA_M, WIDTH], gl.float32, LAYOUT)


@gluon.jit
def zero_parts(CTA_M: gl.constexpr, b_buffers, B_TRANSPOSED: gl.constexpr, LAYOUTS: gl.constexpr):
    """An accumulator for each part of a tile's columns."""
    parts = ()
    for i in gl.static_range(len(b_buffers)):
        parts += (zero_part(CTA_M, b_buffers, B_TRANSPOSED, LAYOUTS, i),)  # type: ignore[assignment]
    return parts


@gluon.jit
def next_slot(slot, phase, STAGES: gl.constexpr):
    """The phase of an mbarrier changes each time the ring has been gone round."""
    wraps = slot == STAGES - 1
    return gl.where(wraps, 0, slot + 1), gl.where(wraps, phase ^ 1, phase)


@gluon.jit
def wgmma_place(
    index, M, N, K, CTA_M: gl.constexpr, CTA_N: gl.constexpr, CTA_K: gl.constexpr, GROUP_M: gl.constexpr, SPLIT_K: gl.constexpr
):
    """(row, column, split, first element along K, steps) of the work at place `index`. There is always a step; past K, zeros are loaded."""
    tiles_m, tiles_n = gl.cdiv(M, CTA_M), gl.cdiv(N, CTA_N)
    split = index // (tiles_m * tiles_n)
    tile_m, tile_n = tile_of(index % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP_M)
    steps = gl.maximum(gl.cdiv(gl.cdiv(K, CTA_K), SPLIT_K), 1)
    return tile_m * CTA_M, tile_n * CTA_N, split, split * steps * CTA_K, steps


@gluon.jit
def wgmma_load(
    a, b, a_buffers, b_buffers, full, empty, M, N, K,
    CTA_M: gl.constexpr, CTA_N: gl.constexpr, CTA_K: gl.constexpr, GROUP_M: gl.constexpr, SPLIT_K: gl.constexpr,
    STAGES: gl.constexpr, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """The producer: walks over the tiles of its CTA and keeps the ring full. b: a descriptor for each part of a tile's columns."""
    slot, phase = gl.to_tensor(0), gl.to_tensor(1)  # an mbarrier that nothing has arrived at has completed its phase 1
    total = gl.cdiv(M, CTA_M) * gl.cdiv(N, CTA_N) * SPLIT_K
    for index in range(gl.program_id(0), total, gl.num_programs(0)):
        row, column, _, start, steps = wgmma_place(index, M, N, K, CTA_M, CTA_N, CTA_K, GROUP_M, SPLIT_K)
        for step in range(steps):
            inner = start + step * CTA_K
            mbarrier.wait(empty.index(slot), phase)
            arrived = full.index(slot)
            mbarrier.expect(arrived, (CTA_M + CTA_N) * CTA_K * (a.dtype.primitive_bitwidth // 8))
            if A_TRANSPOSED:
                copy_in(a, inner, row, arrived, a_buffers.index(slot))
            else:
                copy_in(a, row, inner, arrived, a_buffers.index(slot))
            part = column
            for i in gl.static_range(len(b)):
                if B_TRANSPOSED:
                    copy_in(b[i], part, inner, arrived, b_buffers[i].index(slot))
                else:
                    copy_in(b[i], inner, part, arrived, b_buffers[i].index(slot))
                part += b_buffers[i].shape[1] if B_TRANSPOSED else b_buffers[i].shape[2]
            slot, phase = next_slot(slot, phase, STAGES)


@gluon.jit
def multiply_step(
    a_buffers, b_buffers, full, slot, phase, accumulators,
    A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr, FIRST: gl.constexpr,
):  # fmt: skip
    """Sets the MMAs of one step going once its operands have come: one for each part of the tile's columns."""
    mbarrier.wait(full.index(slot), phase)
    a = a_buffers.index(slot)
    started = ()
    for i in gl.static_range(len(accumulators)):
        b = b_buffers[i].index(slot)
        started += (  # type: ignore[assignment]
            warpgroup_mma(
                a.permute((1, 0)) if A_TRANSPOSED else a,
                b.permute((1, 0)) if B_TRANSPOSED else b,
                accumulators[i],
                use_acc=not FIRST,
                is_async=True,
            ),
        )
    return started


@gluon.jit
def awaited(accumulators, STEPS: gl.constexpr):
    """The accumulators when no more than the MMAs of so many steps are under way."""
    PARTS: gl.constexpr = len(accumulators)
    done = warpgroup_mma_wait(STEPS * PARTS, deps=accumulators)
    return (done,) if PARTS == 1 else done


@gluon.jit
def multiply_on(
    a_buffers, b_buffers, full, empty, slot, phase, last, accumulators, done, steps,
    STAGES: gl.constexpr, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """The steps from `done` on: one step's MMAs are always under way while the buffers of the step before are given back. Those of the last
    still are at the end."""
    for _ in range(done, steps):
        accumulators = multiply_step(a_buffers, b_buffers, full, slot, phase, accumulators, A_TRANSPOSED, B_TRANSPOSED, False)
        accumulators = awaited(accumulators, 1)
        mbarrier.arrive(empty.index(last), count=1)
        last = slot
        slot, phase = next_slot(slot, phase, STAGES)
    return accumulators, slot, phase, last


@gluon.jit
def halves(block):
    """The left and the right half of the block, of which every thread keeps what it has."""
    rows: gl.constexpr = block.shape[0]
    columns: gl.constexpr = block.shape[1]
    return block.reshape([rows, 2, columns // 2]).permute([0, 2, 1]).split()


@gluon.jit
def slices(block, SLICES: gl.constexpr):
    """The block cut along N into equal parts, from left to right."""
    parts = (block,)
    for _ in gl.static_range(SLICES.bit_length() - 1):
        finer = halves(parts[0])
        for i in gl.static_range(1, len(parts)):
            finer += halves(parts[i])
        parts = finer
    return parts


@gluon.jit
def packed(block, dtype: gl.constexpr):
    """fp32 as pairs of 16-bit neighbours in 32 bits, or as it is. Single 16-bit values ptxas 12.8 keeps in fp32 for as long as it can, into
    the next tile's MMAs, which it then runs one by one (C7514)."""
    pairs = block
    if dtype != gl.float32:
        even, odd = block.reshape([block.shape[0], block.shape[1] // 2, 2]).split()
        name: gl.constexpr = "bf16x2" if dtype == gl.bfloat16 else "f16x2"
        pairs = gl.inline_asm_elementwise(f"cvt.rn.{name}.f32 $0, $2, $1;", "=r,f,f", [even, odd], dtype=gl.int32, is_pure=True, pack=1)
    return pairs


@gluon.jit
def packed_parts(blocks, dtype: gl.constexpr):
    parts = ()
    for i in gl.static_range(len(blocks)):
        parts += (packed(blocks[i], dtype),)  # type: ignore[assignment]
    return parts


@gluon.jit
def unpacked(pairs, dtype: gl.constexpr):
    block = pairs
    if dtype != gl.float32:
        both = gl.join(pairs.to(gl.int16), (pairs >> 16).to(gl.int16)).to(dtype, bitcast=True)
        block = both.reshape([pairs.shape[0], pairs.shape[1] * 2])
    return block


@gluon.jit
def store_slices(c, buffers, block, row, column, PART: gl.constexpr, SWAPPED: gl.constexpr):
    """By TMA, a part of a tile in slices as wide as c's boxes, which take its buffers in turn.

    store_wait(n) waits until no more than the last n stores of this consumer, of whichever part, still read shared memory, and holds all
    its warps until then.
    """
    BUFFERS: gl.constexpr = buffers.shape[0]
    WIDTH: gl.constexpr = c.block_type.shape[0 if SWAPPED else 1]
    parts = slices(block, block.shape[1] // WIDTH)
    for i in gl.static_range(block.shape[1] // WIDTH):
        # A tile's first slice waits for every store of the tile before, the last of which is its second part's. All buffers of both parts
        # are free then. The first BUFFERS slices find theirs so, with fewer than BUFFERS stores under way; later ones take the one of the
        # slice BUFFERS before, since which BUFFERS - 1 were stored. The second part comes last and once a tile: its buffer has been free
        # since the tile's first slice, and what is under way reads others.
        if PART == 0:
            tma.store_wait(0 if i == 0 else BUFFERS - 1)
        buffer = buffers.index(i % BUFFERS)
        if SWAPPED:
            buffer.permute((1, 0)).store(parts[i])
            fence_async_shared()
            copy_out(c, column + i * WIDTH, row, buffer)
        else:
            buffer.store(parts[i])
            fence_async_shared()
            copy_out(c, row, column + i * WIDTH, buffer)


@gluon.jit
def store_pointers(
    c, block, row, column, split, M, N, stride_cm, LAYOUTS: gl.constexpr, PART: gl.constexpr, SWAPPED: gl.constexpr
):  # fmt: skip
    LAYOUT: gl.constexpr = LAYOUTS[PART]
    # 32-bit offsets take half the registers of 64-bit ones; with absolute columns they are not held from tile to tile
    rows = gl.arange(0, block.shape[0], layout=gl.SliceLayout(1, LAYOUT))
    columns = column + gl.arange(0, block.shape[1], layout=gl.SliceLayout(0, LAYOUT))
    own = gl.convert_layout(block, LAYOUT)  # nothing moves: the same layout by another name
    inside = (rows < M - row)[:, None] & (columns < N)[None, :]
    if SWAPPED:
        corner = c + (split * gl.cast(N, gl.int64) + column) * stride_cm + row
        gl.store(corner + (rows[:, None] + (columns - column)[None, :] * stride_cm), own, mask=inside)
    else:
        corner = c + (split * gl.cast(M, gl.int64) + row) * stride_cm
        gl.store(corner + (rows[:, None] * stride_cm + columns[None, :]), own, mask=inside)


@gluon.jit
def wgmma_store(
    c, c_buffers, parts, row, column, split, M, N, stride_cm, TMA_STORE: gl.constexpr, LAYOUTS: gl.constexpr, SWAPPED: gl.constexpr
):  # fmt: skip
    """c: a descriptor for each part of a tile's columns, or a pointer alone."""
    dtype: gl.constexpr = c[0].dtype if TMA_STORE else c[0].dtype.element_ty
    FIRST: gl.constexpr = parts[0].shape[1] * (1 if dtype == gl.float32 else 2)  # columns
    for i in gl.static_range(len(parts)):
        block = unpacked(parts[i], dtype)
        if TMA_STORE:
            store_slices(c[i], c_buffers[i], block, row, column + i * FIRST, i, SWAPPED)
        else:
            store_pointers(c[0], block, row, column + i * FIRST, split, M, N, stride_cm, LAYOUTS, i, SWAPPED)


EXPORTS = (
    *(
        copy_in,
        copy_out,
        tile_buffers,
        parts_of,
        part_buffers,
        barriers,
        zero_part,
        zero_parts,
        next_slot,
        wgmma_place,
        wgmma_load,
        multiply_step,
        awaited,
        multiply_on,
    ),
    *(halves, slices, packed, packed_parts, unpacked, store_slices, store_pointers, wgmma_store),
)
