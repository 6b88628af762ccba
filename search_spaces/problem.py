"""What is to be multiplied: C[M,N] = A[M,K] @ B[K,N], with the types and the layout in memory that decide which kernels apply."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from search_spaces.errors import UserError
from search_spaces.plain_text import shown, whole_number

DTYPE_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}
ACCUMULATOR_BYTES = 4  # every family accumulates in fp32
LAYOUTS = ("nn", "nt", "tn", "tt")
MAX_EXTENT = 2**31 - 1  # tile coordinates are 32-bit on the device
MAX_LEADING_DIMENSION = 2**40  # elements: a row further from the next than that is in no memory
MAX_ALIGNMENT_BYTES = 2**30
POINTER_ALIGNMENT_BYTES = 16  # what torch's allocator gives at least, and the widest load needs


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One matrix product.

    `layout` is torch's row-major sense: `nt` is `x @ w.T` with w stored [N, K]. Leading dimensions are in elements: the distance between
    two rows of the matrix as stored (A is stored [M, K] for `n`, [K, M] for `t`). `alignment_bytes` is what the base pointers are a
    multiple of.
    """

    m: int
    n: int
    k: int
    dtype: str = "bf16"
    out_dtype: str = ""
    layout: str = "nt"
    lda: int = 0
    ldb: int = 0
    ldc: int = 0
    alignment_bytes: int = POINTER_ALIGNMENT_BYTES

    def __post_init__(self) -> None:
        for name in ("dtype", "out_dtype"):
            value = getattr(self, name) or self.dtype
            if value not in DTYPE_BYTES:
                raise UserError(f"unknown dtype {value!r}; known: {', '.join(DTYPE_BYTES)}")
        if self.layout not in LAYOUTS:
            raise UserError(f"unknown layout {self.layout!r}; known: {', '.join(LAYOUTS)} (nt is x @ w.T with w stored [N, K])")
        for name in ("m", "n", "k"):
            extent = getattr(self, name)
            if not 0 <= extent <= MAX_EXTENT:
                raise UserError(f"{name.upper()} = {extent} is outside 0..{MAX_EXTENT}; give a shape as MxNxK")
        object.__setattr__(self, "out_dtype", self.out_dtype or self.dtype)
        for name, least in (("lda", self.a_columns), ("ldb", self.b_columns), ("ldc", self.n)):
            given = getattr(self, name)
            if given and given < least:
                raise UserError(f"{name} = {given} is less than the {least} elements of a row; leave it out or give at least {least}")
            if given > MAX_LEADING_DIMENSION:
                raise UserError(f"{name} = {given} is over the {MAX_LEADING_DIMENSION} elements that rows may be apart; give less")
            object.__setattr__(self, name, given or max(least, 1))
        least, bytes_ = self.element_bytes, self.alignment_bytes
        if not least <= bytes_ <= MAX_ALIGNMENT_BYTES or bytes_ & (bytes_ - 1):
            raise UserError(f"alignment of {bytes_} bytes: give a power of two of at least {least} and at most {MAX_ALIGNMENT_BYTES}")

    @property
    def a_transposed(self) -> bool:
        return self.layout[0] == "t"

    @property
    def b_transposed(self) -> bool:
        return self.layout[1] == "t"

    @property
    def a_columns(self) -> int:
        """Elements of A that lie side by side in memory."""
        return self.m if self.a_transposed else self.k

    @property
    def b_columns(self) -> int:
        """Elements of B that lie side by side in memory."""
        return self.k if self.b_transposed else self.n

    @property
    def element_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def out_bytes(self) -> int:
        return DTYPE_BYTES[self.out_dtype]

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def least_bytes(self) -> int:
        """DRAM traffic with every element of A and B read once and every element of C written once."""
        return self.element_bytes * (self.m * self.k + self.k * self.n) + self.out_bytes * self.m * self.n

    @property
    def arithmetic_intensity(self) -> float:
        """FLOPs per byte at the least traffic; 0 for an empty product."""
        return self.flops / self.least_bytes if self.least_bytes else 0.0

    @property
    def buffer_bytes(self) -> int:
        """Device memory that the three matrices take, gaps between rows included."""
        a_rows = self.k if self.a_transposed else self.m
        b_rows = self.n if self.b_transposed else self.k
        return self.element_bytes * (a_rows * self.lda + b_rows * self.ldb) + self.out_bytes * self.m * self.ldc

    @property
    def is_empty(self) -> bool:
        """True where there is nothing to tune: no output, or an output of zeros."""
        return 0 in (self.m, self.n, self.k)

    def row_alignment_bytes(self, operand: str) -> int:
        """The largest power of two up to 16 that every row start of operand `a`, `b` or `c` is a multiple of."""
        row_bytes = {"a": self.lda * self.element_bytes, "b": self.ldb * self.element_bytes, "c": self.ldc * self.out_bytes}[operand]
        return math.gcd(row_bytes, self.alignment_bytes, 16)

    def prepacked(self, operands: str) -> Problem:
        """The product with these of `a` and `b` repacked beforehand, where their rows do not start at multiples of 16 bytes: to rows of
        whole 128-byte lines, as a schedule that pads copies them."""
        line = 128 // self.element_bytes
        longer = {
            f"ld{x}": -(-getattr(self, f"ld{x}") // line) * line for x in operands if getattr(self, f"ld{x}") * self.element_bytes % 16
        }
        return replace(self, **longer)

    @property
    def packed_bytes(self) -> int:
        """Of those operands whose rows do not start at multiples of 16 bytes: what a copy with rows that do takes."""
        rows = {"a": self.k if self.a_transposed else self.m, "b": self.n if self.b_transposed else self.k}
        columns = {"a": self.a_columns, "b": self.b_columns}
        return sum(rows[x] * columns[x] * self.element_bytes for x in rows if self.row_alignment_bytes(x) < 16)

    @property
    def shape(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def text(self) -> str:
        """All that tells this problem from others, such as `64x4096x4096 bf16 nt` or `8x512x100 fp16 -> fp32 nn, lda 104, aligned to 32 B`;
        what stands at its default is left out."""
        dense = {"lda": self.a_columns, "ldb": self.b_columns, "ldc": self.n}
        remarks = [f"{name} {getattr(self, name)}" for name, columns in dense.items() if getattr(self, name) != max(columns, 1)]
        remarks += [f"aligned to {self.alignment_bytes} B"] if self.alignment_bytes != POINTER_ALIGNMENT_BYTES else []
        types = self.dtype if self.out_dtype == self.dtype else f"{self.dtype} -> {self.out_dtype}"
        return ", ".join([f"{self.shape} {types} {self.layout}", *remarks])


def parse_shape(text: str) -> tuple[int, int, int]:
    """`4096x4096x4096` -> (4096, 4096, 4096), M x N x K."""
    words = re.split("[xX]", text.strip())
    if len(words) != 3:
        raise UserError(f"shape {shown(text)} is not MxNxK; for example 4096x4096x4096")
    m, n, k = (
        whole_number(word, f"{name} of shape {shown(text)}", most=MAX_EXTENT, how="give MxNxK, such as 4096x4096x4096")
        for name, word in zip("MNK", words, strict=True)
    )
    return m, n, k
