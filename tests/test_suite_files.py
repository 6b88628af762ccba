"""A suite file: what its columns mean, what the tuner does not do and says so, and what is wrong with a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from search_spaces.errors import UserError
from search_spaces.problem import Problem
from tuner.suite_files import parse_suite, read_suite, suite_names

ODD = """\
suite,name,M,n,K,dtype_in,dtype_acc,dtype_out,layout,lda,alignment,source,weather
# a remark
llama,qkv,1,6144,4096,bf16,fp32,bf16,rcr,,,"a list, of its own",rain
,plain,8,16,32,,,,,,,,
,half,8,16,32,Half,fp32,fp32,NN,40,8,,

,by rows,8,16,32,fp16,fp32,fp16,rrr,,,,
,a by columns,8,16,32,fp16,fp32,fp16,crr,,,,
,both by columns,8,16,32,fp16,fp32,fp16,ccr,,,,
,c by columns,8,16,32,fp16,fp32,fp16,ccc,,,,
,eight bits,16,57344,8192,fp8_e4m3,fp32,bf16,rcr,,,,
,tf32,8,16,32,tf32,fp32,fp32,nt,,,,
,full,8,16,32,fp32,fp32,fp32,nt,,,,
,int8,8,16,32,int8,int32,int32,nt,,,,
,half sums,8,16,32,fp16,fp16,fp16,nt,,,,
,other half,8,16,32,bf16,fp32,fp16,nt,,,,
,nothing,8,16,0,bf16,fp32,bf16,nt,,,,
,strange,8,16,32,bf16,fp32,bf16,row,,,,
,short rows,8,16,32,bf16,fp32,bf16,nt,31,,,
"""


def test_every_line_is_a_problem_or_has_its_reason() -> None:
    suite = parse_suite("odd", ODD)
    assert suite.ignored == ("weather",)
    found = {row.name: row.problem or row.reason for row in suite.rows}
    assert found == {
        "qkv": Problem(m=1, n=6144, k=4096, dtype="bf16", layout="nt"),
        "plain": Problem(m=8, n=16, k=32, dtype="bf16", layout="nt"),
        "half": Problem(m=8, n=16, k=32, dtype="fp16", out_dtype="fp32", layout="nn", lda=40, alignment_bytes=8),
        "by rows": Problem(m=8, n=16, k=32, dtype="fp16", layout="nn"),
        "a by columns": Problem(m=8, n=16, k=32, dtype="fp16", layout="tn"),
        "both by columns": Problem(m=8, n=16, k=32, dtype="fp16", layout="tt"),
        "c by columns": "layout ccc: C is stored by columns, which no kernel family does",
        "eight bits": "no kernel family multiplies fp8_e4m3; they take bf16, fp16",
        "tf32": "no kernel family multiplies tf32; they take bf16, fp16",
        "full": "no kernel family multiplies fp32; they take bf16, fp16",
        "int8": "no kernel family multiplies int8; they take bf16, fp16",
        "half sums": "sums are asked for in fp16; every kernel family adds up in fp32",
        "other half": "no C of fp16 from bf16; it can be bf16 or fp32",
        "nothing": "M, N or K is 0: there is nothing to tune",
        "strange": "unknown layout 'row'; known: nn, nt, tn, tt, or r and c for A, B and C such as rcr",
        "short rows": "lda = 31 is less than the 32 elements of a row; leave it out or give at least 32",
    }
    first, second = suite.rows[:2]
    assert (first.suite, first.source, first.text) == ("llama", "a list, of its own", "llama qkv 1x6144x4096 bf16 nt")
    assert second.suite == "odd"
    skipped = {row.name: row.kind for row in suite.rows if row.problem is None}
    assert skipped["eight bits"] == "fp8_e4m3 -> bf16 rcr"  # in the file's own words


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "suite s is empty; give a header with the columns M, N and K, and a line a product"),
        ("M,N,K\n", "suite s has a header and 0 products; give a line a product"),
        ("M,N,depth\n1,2,3\n", "suite s has no column K; it has M, N, depth, and needs M, N and K"),
        ("M,N,K,dtype,dtype_in\n1,2,3,bf16,bf16\n", "suite s has 2 columns for dtype; leave one"),
        ("M,N,K\n1,2,3\n\n1,2\n", "suite s, line 4: 2 values for 3 columns; give one each"),
        ("M,N,K\n1,2,-3\n", "suite s, line 2: k is -3; it is a whole number from 0 to 9223372036854775807; write it in digits"),
        ('M,N,K\n1,2,"3\n', "suite s is not CSV: unexpected end of data"),
    ],
)
def test_what_is_wrong_with_a_file(text: str, sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_suite("s", text)
    assert str(raised.value) == sentence


def one(columns: str, values: str) -> Problem | str:
    """The problem of a suite's only row, or the reason why there is none."""
    row = parse_suite("s", f"m,n,k,{columns}\n8,16,32,{values}\n").rows[0]
    return row.problem or row.reason


NN, NT, TN = (Problem(m=8, n=16, k=32, layout=layout) for layout in ("nn", "nt", "tn"))
ONLY = "only C = A @ B is tuned"


@pytest.mark.parametrize(
    ("columns", "values", "found"),
    [
        # what changes nothing is done
        ("bias", "0", NT),
        ("bias", "False", NT),
        ("bias", "none", NT),
        ("bias", "", NT),
        ("batch", "1", NT),
        ("batch_count", "1", NT),
        ("alpha,beta", "1.0,0", NT),
        ("activation_type,scaleA", "none,0", NT),
        ("groups,grouped_gemm", "1,0", NT),
        ("epilogue", "identity", NT),
        ("OperationKind", "gemm", NT),
        # what makes it another product is not
        ("bias", "1", f"a bias is added: bias is '1'; {ONLY}"),
        ("bias_vector", "true", f"a bias is added: biasvector is 'true'; {ONLY}"),
        ("use bias", "yes", f"a bias is added: usebias is 'yes'; {ONLY}"),
        ("batch", "16", f"a batch of products: batch is '16'; {ONLY}"),
        ("B", "16", f"a batch of products: b is '16'; {ONLY}"),
        ("groups", "4", f"a group of products: groups is '4'; {ONLY}"),
        ("alpha", "0.5", f"the product is scaled: alpha is '0.5'; {ONLY}"),
        ("alpha", "0", f"the product is scaled: alpha is '0'; {ONLY}"),
        ("beta", "1", f"C is added to the product: beta is '1'; {ONLY}"),
        ("activation", "relu", f"C is activated: activation is 'relu'; {ONLY}"),
        ("scaleA", "1", f"operands are scaled: scalea is '1'; {ONLY}"),
        ("bpreshuffle", "True", f"an operand is stored in another order: bpreshuffle is 'True'; {ONLY}"),
        ("OperationKind", "conv2d", f"operation 'conv2d'; {ONLY}"),
        # how A and B are stored
        ("transA,transB", "N,T", NT),
        ("transA,transB", "N,N", NN),
        ("transA,transB", "T,N", TN),
        ("trans_a", "N", NT),
        ("trans_a", "T", Problem(m=8, n=16, k=32, layout="tt")),
        ("transB", "x", "transb is 'x'; N and T are known"),
        ("trans", "TN", TN),
        ("layout,transB", "nt,T", NT),
        ("layout,transB", "nt,N", "transb contradicts another column about how B is stored; leave one"),
        ("layout_a,layout_b", "row,col", NT),
        ("layout_a,layout_b,layout_c", "row,row,col", "layout of C: C is stored by columns, which no kernel family does"),
        ("layout", "row-col-row", NT),
        ("layout", "row/row", NN),
        ("transA,transB,ldd", "T,N,8", "transa beside columns of a BLAS bench: C is stored by columns, which no kernel family does"),
        # CUTLASS's profiler
        ("A,B,C,D,accum", "bf16:row,bf16:column,bf16:row,bf16:row,f32", NT),
        ("A,B,C", "f16:column,f16:row,f32:row", Problem(m=8, n=16, k=32, dtype="fp16", out_dtype="fp32", layout="tn")),
        ("A,B,C,D", "f16:row,f16:row,f16:row,f16:column", "layout of D contradicts another column about how C is stored; leave one"),
        ("A,B", "f16:row,e4m3:column", "operands of two types, fp16 and B of e4m3; every kernel family takes one"),
        ("A,B", "f16:row,f16:blocked", "unknown layout 'blocked'; row and column are known"),
        ("A", "f16", "A is 'f16'; a type and a layout such as f16:row are known"),
        # types
        ("a_type,b_type,c_type,compute_type", "bf16_r,bf16_r,bf16_r,f32_r", NT),
        ("a_type,b_type", "f16_r,bf16_r", "operands of two types, fp16 and B of bf16; every kernel family takes one"),
        ("dtype,outdtype", "torch.bfloat16,torch.float32", Problem(m=8, n=16, k=32, out_dtype="fp32")),
        ("dtype", "torch.float8_e4m3fn", "no kernel family multiplies torch.float8_e4m3fn; they take bf16, fp16"),
    ],
)
def test_a_row_is_done_right_or_skipped_with_its_reason(columns: str, values: str, found: Problem | str) -> None:
    assert one(columns, values) == found


@pytest.mark.parametrize(
    ("dtype", "words"),
    [
        (
            "bf16",
            "bf16 BF16 bfloat16 torch.bfloat16 __nv_bfloat16 nv_bfloat16 CUDA_R_16BF cutlass::bfloat16_t bf16_r jnp.bfloat16",
        ),
        ("fp16", "fp16 f16 F16 half torch.half torch.float16 __half half_t CUDA_R_16F HIP_R_16F float16 f16_r at::Half"),
    ],
)
def test_words_for_types(dtype: str, words: str) -> None:
    assert {word: one("dtype", word) for word in words.split()} == dict.fromkeys(words.split(), Problem(m=8, n=16, k=32, dtype=dtype))


def test_columns_that_say_nothing_of_the_product_are_named() -> None:
    assert parse_suite("s", "M,N,K,weather,bias,split_k_slices\n1,2,3,rain,0,4\n").ignored == ("weather", "split_k_slices")


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        ("²", "suite s, line 2: m is '²', which is no whole number; write it in digits"),
        ("٣", "suite s, line 2: m is '٣', which is no whole number; write it in digits"),
        ("4096.0", "suite s, line 2: m is '4096.0', which is no whole number; write it in digits"),
        ("m:4096", "suite s, line 2: m is 'm:4096', which is no whole number; write it in digits"),
        ("1e3", "suite s, line 2: m is '1e3', which is no whole number; write it in digits"),
        ("", "suite s, line 2: m is '', which is no whole number; write it in digits"),
        (
            "9" * 5000,
            f"suite s, line 2: m is {'9' * 60}... (5000 characters); it is a whole number from 0 to 92233720368547758",
        ),
    ],
)
def test_what_is_no_number_is_a_sentence(number: str, sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_suite("s", f"M,N,K\n{number},2,3\n")
    assert str(raised.value).startswith(sentence)


def test_an_extent_beyond_32_bits_is_its_rows_reason() -> None:
    row = parse_suite("s", "M,N,K\n4294967296,2,3\n").rows[0]
    assert row.reason == "M = 4294967296 is outside 0..2147483647; give a shape as MxNxK"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_of_every_system(end: str) -> None:
    assert [row.shape for row in parse_suite("s", end.join(("M,N,K", "1,2,3", "4,5,6"))).rows] == ["1x2x3", "4x5x6"]


def test_what_a_terminal_would_obey_is_escaped() -> None:
    row = parse_suite("s", "M,N,K,name\n1,2,3,\x1b[2Jred\n").rows[0]
    assert row.name == "\\x1b[2Jred"


def test_a_line_break_within_quotes_is_part_of_a_value() -> None:
    suite = parse_suite("s", 'M,N,K,source\n1,2,3,"two\nlines"\n4,5,6,\n')
    assert [row.shape for row in suite.rows] == ["1x2x3", "4x5x6"]


def test_a_suite_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.CSV"
    file.write_text("\ufeffm,n,k\r\n1,2,3\r\n", encoding="utf-8")
    suite = read_suite(str(file))
    assert (suite.title, suite.rows[0].suite, suite.rows[0].shape) == ("mine", "mine", "1x2x3")
    missing = r"cannot read the suite file none\.csv: No such file or directory; give a CSV file with the columns M, N and K, or one of llm"
    with pytest.raises(UserError, match=missing):
        read_suite("none.csv")
    with pytest.raises(UserError, match="no suite named 'lm'; known: llm, seeds, unaligned, or a CSV file; did you mean llm"):
        read_suite("lm")


@pytest.mark.parametrize("name", suite_names())
def test_every_packaged_suite_can_be_done(name: str) -> None:
    suite = read_suite(name)
    assert suite.ignored == ()
    assert [row.reason for row in suite.rows] == [""] * len(suite.rows)
    assert len({row.problem for row in suite.rows}) == len(suite.rows)


def test_the_llm_suite_covers_what_a_model_multiplies() -> None:
    suite = read_suite("llm")
    assert len(suite.rows) >= 30
    assert {row.suite for row in suite.rows} == {"decode", "mid", "prefill", "square", "split-K", "tall-skinny"}
    assert all(row.source and row.layout == "nt" and row.dtype == "bf16" for row in suite.rows)
