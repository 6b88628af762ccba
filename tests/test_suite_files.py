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
