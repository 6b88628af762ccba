"""What the columns of a suite file mean: the types and layouts of the product, and what would make it another product than C = A @ B.

Suites come from many hands: torch's and NVIDIA's words for types, CUTLASS's profiler (`A` = `f16:row`), the benches of hipBLASLt and
rocBLAS (`transA`, `a_type`). A row is understood whole or not done, with its reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from search_spaces.families import families
from search_spaces.plain_text import shown
from search_spaces.problem import LAYOUTS

REQUIRED = ("m", "n", "k")
# columns of the product itself, as the table of the reader calls them
KNOWN = (*REQUIRED, "suite", "name", "dtype", "dtype_acc", "out_dtype", "layout", "lda", "ldb", "ldc", "alignment", "source")
# other names for them, without case and punctuation
OTHER_NAMES = {
    **dict.fromkeys(("dtypein", "indtype", "inputdtype", "datatype", "type", "precision"), "dtype"),
    **dict.fromkeys(("dtypeout", "outputdtype", "outtype", "otype"), "out_dtype"),
    **dict.fromkeys(("accum", "acc", "acctype", "accdtype", "accumulator", "computetype", "computedtype"), "dtype_acc"),
}
# the same in more than one column: of each operand its type, its layout, or both as CUTLASS's profiler writes them
TYPES_OF = {f"{prefix}{x}{suffix}": x for x in "abcd" for prefix, suffix in (("", "type"), ("dtype", ""), ("", "dtype"), ("type", ""))}
LAYOUTS_OF = {f"{prefix}{x}{suffix}": x for x in "abcd" for prefix, suffix in (("layout", ""), ("", "layout"))}
TRANSPOSED = {f"{word}{x}": x for x in "ab" for word in ("trans", "transpose", "transposed", "op")}
BOTH_TRANSPOSED = ("trans", "transpose", "transab", "transposes")  # of A and B in one column, such as NT
OPERANDS = ("a", "b", "c", "d")
# words that a column of `CHANGES` may hold where it changes nothing
NEUTRAL = ("", "none", "no", "false", "off", "null", "nan", "na", "n/a", "-", "identity", "linear", "default")
# columns that make it another product unless they hold a neutral word or this number -> the number, and what they ask for
CHANGES: Mapping[str, tuple[float, str]] = {
    **dict.fromkeys(("bias", "biasvector", "biastype", "addbias", "usebias", "hasbias"), (0, "a bias is added")),
    **dict.fromkeys(("batch", "batches", "batchcount", "batchsize", "bs", "numbatches"), (1, "a batch of products")),
    **dict.fromkeys(("groups", "group", "groupcount", "numgroups", "g", "experts", "numexperts", "e"), (1, "a group of products")),
    **dict.fromkeys(("groupedgemm", "grouped"), (0, "a group of products")),
    "alpha": (1, "the product is scaled"),
    "beta": (0, "C is added to the product"),
    **dict.fromkeys(("residual", "accumulate", "addc"), (0, "something is added to the product")),
    **dict.fromkeys(("activation", "activationtype", "act", "actfn", "epilogue", "epilog", "relu", "gelu", "silu"), (0, "C is activated")),
    **dict.fromkeys(("scale", "scales", "scalea", "scaleb", "scalec", "scaled", "scaleab", "scaletype"), (0, "operands are scaled")),
    **dict.fromkeys(("sparse", "sparsity", "structuredsparsity"), (0, "an operand is sparse")),
    **dict.fromkeys(("quant", "quantization", "qdtype", "qdtypew", "qdtypea"), (0, "operands are quantised")),
    **dict.fromkeys(
        ("bpreshuffle", "preshuffle", "swizzlea", "swizzleb", "packed", "prepacked"), (0, "an operand is stored in another order")
    ),
    **dict.fromkeys(("conj", "conjugate", "conja", "conjb", "symmetric", "triangular", "uplo"), (0, "the product is not a plain one")),
}
# columns of which each word but these is another kind of operation
KINDS = {"operationkind": "operation", "gemmkind": "operation", "op": "operation", "operation": "operation", "function": "operation"}
PLAIN_KINDS = ("gemm", "matmul", "mm", "linear", "addmm", "universal", "matmulex", "gemmex")
# columns of benches whose matrices are stored by columns, as in BLAS
BY_COLUMNS = ("hipblasltgflops", "rocblasgflops", "ldd", "stridea", "strideb", "stridec", "strided")

TYPE_WORDS = {
    "bf16": ("bf16", "bfloat16", "bfloat", "16bf", "nvbfloat16", "hipbfloat16"),
    "fp16": ("fp16", "f16", "float16", "half", "16f"),
    "fp32": ("fp32", "f32", "float32", "float", "single", "32f", "compute32f"),
}
DTYPES = {word: dtype for dtype, words in TYPE_WORDS.items() for word in words}
TYPE_AFFIXES = re.compile(r"^(torch|jnp|np|tl|cutlass|at|c10)(\.|::)|^(cuda|hip)_?r_|^cublas_|^__")
OUT_DTYPES = ("fp32",)  # that the library writes too, besides the operands' own
ROWS, COLUMNS = ("r", "row", "rows", "rowmajor"), ("c", "col", "column", "columns", "colmajor", "columnmajor")
NOT_TRANSPOSED, IS_TRANSPOSED = ("n", "no", "false", "0", "none", "f"), ("t", "yes", "true", "1", "c")


class NotDone(Exception):
    """What the tuner does not do, in words."""


def plain(name: str) -> str:
    """A column's name without case and punctuation."""
    return re.sub(r"[\W_]", "", name.lower())


def canonical(name: str) -> str:
    """The reader's word for a column: of KNOWN where it is one, else plain."""
    word = plain(name)
    return _CANONICAL.get(word, word)


_CANONICAL = {plain(column): column for column in KNOWN} | OTHER_NAMES


def matters(column: str) -> bool:
    """Whether a column says anything of the product."""
    tables = (KNOWN, CHANGES, KINDS, TYPES_OF, LAYOUTS_OF, TRANSPOSED, BOTH_TRANSPOSED, OPERANDS)
    return any(column in table for table in tables)


def check_plain(cells: Mapping[str, str]) -> None:
    """Raises NotDone where a column asks for more than C = A @ B."""
    for column, text in cells.items():
        word = text.lower()
        if column in CHANGES and word not in NEUTRAL and not _is_number(word, CHANGES[column][0]):
            raise NotDone(f"{CHANGES[column][1]}: {column} is {shown(text)}; only C = A @ B is tuned")
        if column in KINDS and word not in (*NEUTRAL, *PLAIN_KINDS):
            raise NotDone(f"{KINDS[column]} {shown(text)}; only C = A @ B is tuned")
        if column == "b" and text.isdigit() and not _is_number(word, 1):
            raise NotDone(f"a batch of products: b is {shown(text)}; only C = A @ B is tuned")


def _is_number(word: str, number: float) -> bool:
    return bool(re.fullmatch(r"[+-]?[0-9]{1,9}(\.[0-9]{0,9})?", word)) and float(word) == number


def dtype_word(text: str) -> str:
    """The tuner's word for a type, or the file's where it has none: torch.bfloat16, __nv_bfloat16, CUDA_R_16BF, half_t, f32_r."""
    given = text.strip().lower()
    word = re.sub(r"_[rt]$", "", TYPE_AFFIXES.sub("", given)).replace("_", "")
    return DTYPES.get(word, given)


def types(cells: Mapping[str, str]) -> tuple[str, str]:
    """The types of A and B and of C. Raises NotDone."""
    given = {x: dtype_word(text) for x, text in _each(cells, TYPES_OF, part=0).items()}
    dtype = dtype_word(cells.get("dtype", "")) or given.get("a") or given.get("b") or "bf16"
    others = [f"{x.upper()} of {given[x]}" for x in "ab" if given.get(x, dtype) != dtype]
    if others:
        raise NotDone(f"operands of two types, {dtype} and {others[0]}; every kernel family takes one")
    out_dtype = dtype_word(cells.get("out_dtype", "")) or given.get("d") or given.get("c") or dtype
    sums = dtype_word(cells.get("dtype_acc", ""))
    taken = sorted({name for family in families().values() for name in family.dtypes})
    if dtype not in taken:
        raise NotDone(f"no kernel family multiplies {dtype}; they take {', '.join(taken)}")
    if sums not in ("", "fp32"):
        raise NotDone(f"sums are asked for in {sums}; every kernel family adds up in fp32")
    if out_dtype not in (dtype, *OUT_DTYPES):
        raise NotDone(f"no C of {out_dtype} from {dtype}; it can be {' or '.join((dtype, *OUT_DTYPES))}")
    return dtype, out_dtype


def layout(cells: Mapping[str, str]) -> str:
    """torch's two letters, from all columns that say how A, B and C are stored. Raises NotDone where two of them contradict."""
    said = {column: _letters(cells[column]) for column in ("layout",) if cells.get(column)}
    for x, text in _each(cells, LAYOUTS_OF, part=1).items():
        said[f"layout of {x.upper()}"] = {("c" if x == "d" else x): _stored(text)}
    for column, x in TRANSPOSED.items():
        if cells.get(column):
            if any(other in cells for other in BY_COLUMNS):
                raise NotDone(f"{column} beside columns of a BLAS bench: C is stored by columns, which no kernel family does")
            said[column] = {x: _transposed(column, cells[column])}
    for column in BOTH_TRANSPOSED:
        if cells.get(column):
            if cells[column].lower() not in LAYOUTS:
                raise NotDone(f"{column} is {shown(cells[column])}; {', '.join(LAYOUTS)} are known")
            said[column] = _letters(cells[column])
    found: dict[str, str] = {}
    for column, letters in said.items():
        for x, letter in letters.items():
            if found.setdefault(x, letter) != letter:
                raise NotDone(f"{column} contradicts another column about how {x.upper()} is stored; leave one")
    if found.get("c") == "t":
        text = cells.get("layout") or "of C"
        raise NotDone(f"layout {text}: C is stored by columns, which no kernel family does")
    return found.get("a", "n") + found.get("b", "t")


def _each(cells: Mapping[str, str], columns: Mapping[str, str], part: int) -> dict[str, str]:
    """What the columns of one kind say of each operand; `part` is 0 for the type and 1 for the layout of CUTLASS's `f16:row`."""
    found = {x: cells[column] for column, x in columns.items() if cells.get(column)}
    for x in OPERANDS:
        text = cells.get(x, "")
        if ":" in text:
            found.setdefault(x, text.split(":")[part].strip())
        elif text and not (x == "b" and text.isdigit()):
            raise NotDone(f"{x.upper()} is {shown(text)}; a type and a layout such as f16:row are known")
    return found


def _letters(text: str) -> dict[str, str]:
    """Of A, B and perhaps C: torch's two letters, one of r and c each, or the words row and column."""
    word = text.lower()
    if word in LAYOUTS:
        return dict(zip("ab", word, strict=True))
    words = re.split(r"[\s,;:/|_-]+", word) if not re.fullmatch(r"[rc]{3}", word) else list(word)
    if len(words) not in (2, 3) or not all(part in ROWS or part in COLUMNS for part in words):
        known = f"{', '.join(LAYOUTS)}, or r and c for A, B and C such as rcr"
        raise NotDone(f"unknown layout {shown(text)}; known: {known}")
    return {x: _stored(part) for x, part in zip("abc", words, strict=False)}


def _stored(text: str) -> str:
    """How a matrix is stored -> torch's letter for it."""
    word = plain(text)
    if word not in (*ROWS, *COLUMNS):
        raise NotDone(f"unknown layout {shown(text)}; row and column are known")
    return "n" if word in ROWS else "t"


def _transposed(column: str, text: str) -> str:
    word = text.lower()
    if word not in (*NOT_TRANSPOSED, *IS_TRANSPOSED):
        raise NotDone(f"{column} is {shown(text)}; N and T are known")
    return "n" if word in NOT_TRANSPOSED else "t"
