"""Suite files that someone broke: each is read, or refused in one printable sentence, within a second."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from search_spaces.errors import UserError
from tuner.suite_files import read_suite

SEEDS = (
    b'suite,name,M,N,K,dtype_in,dtype_out,layout,source\nllm,qkv,1,6144,4096,bf16,bf16,nt,"a list, too"\n,o,64,8,81,fp16,fp32,nn,\n',
    b"m,n,k,lda,ldb,ldc,alignment,bias,alpha,beta,batch_count,activation\r\n8,16,32,40,,,8,0,1.0,0,1,none\r\n8,16,32,,,,16,1,2,1,4,relu\r\n",
    b"OperationKind,m,n,k,A,B,C,D,accum,alpha,beta\ngemm,64,64,64,f16:row,f16:column,f16:row,f16:row,f32,1,0\n",
    b"transA,transB,M,N,K,a_type,b_type,c_type,compute_type\nN,T,12,12,128,bf16_r,bf16_r,bf16_r,f32_r\n# a remark\n\nT,N,1,2,3,f16_r,,,\n",
)
PIECES = (
    *(
        b"\0",
        b'"',
        b"'",
        b",",
        b"\r",
        b"\n",
        b"\r\n",
        b"\xef\xbb\xbf",
        b"\xff\xfe",
        b"\xc2\xb2",
        b"\xe2\x80\xae",
        b"\x1b[2J",
        b"-1",
        b"4096.0",
    ),
    *(b"9" * 5000, b"1e9", b"0x10", b"\xd9\xa3", b"m:4096", b"torch.bfloat16", b"=1+1", b"nan", b":", b"#", b" ", b"\xe2\x80\xa8", b"\x85"),
)


def swap(data: bytearray, luck: random.Random) -> None:
    data[luck.randrange(len(data))] = luck.choice((luck.randrange(256), luck.randrange(32, 127), luck.randrange(48, 58)))


def insert(data: bytearray, luck: random.Random) -> None:
    at = luck.randrange(len(data) + 1)
    data[at:at] = luck.choice(PIECES)


def cut(data: bytearray, luck: random.Random) -> None:
    at = luck.randrange(len(data))
    del data[at : at + luck.choice((1, 1, 5, 50))]


def repeat(data: bytearray, luck: random.Random) -> None:
    at = luck.randrange(len(data))
    data[at:at] = data[at : at + luck.randrange(40)] * luck.choice((1, 2, 200))


MUTATIONS: tuple[Callable[[bytearray, random.Random], None], ...] = (swap, insert, cut, repeat)


def mutated(number: int) -> bytes:
    """The same bytes for the same number."""
    luck = random.Random(number)
    data = bytearray(luck.choice(SEEDS))
    for _ in range(luck.randrange(1, 4)):
        luck.choice(MUTATIONS)(data, luck)
        data = data or bytearray(b"m")
    return bytes(data.decode("utf-8", "replace").encode("utf-16")) if luck.random() < 0.02 else bytes(data)


def test_a_broken_suite_is_read_or_refused_in_a_sentence(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    file, read, slow = tmp_path / "suite.csv", 0, []
    count = 3000 if request.config.getoption("--fuzz") else 300
    for number in range(count):
        file.write_bytes(mutated(number))
        start = time.perf_counter()
        try:
            suite = read_suite(str(file))
        except UserError as error:
            sentence = str(error)
            assert sentence.isprintable(), (number, sentence)
            assert "suite" in sentence, (number, sentence)
        else:
            read += 1
            assert suite.rows, number
            for row in suite.rows:
                assert (row.problem is None) == bool(row.reason), number
                assert f"{row.text}{row.reason}{row.source}".isprintable(), (number, row)
                if row.problem is not None:
                    assert (row.problem.m, row.problem.n, row.problem.k) == (row.m, row.n, row.k), number
        if time.perf_counter() - start > 1:
            slow.append(number)
    assert count / 10 < read < count  # some are still suites, some no longer
    print(f"{count} suites: {read} read, the others refused, {len(slow)} of them over a second")


@pytest.mark.parametrize(
    "content", [b"", b"\n" * 1_000_000, b"M,N,K\n" + b"1,2,3\n" * 150_000, b"," * 1_000_000, b'"' * 1_000_000, b"a" * 2**21]
)
def test_a_large_or_empty_suite_is_refused_in_a_sentence(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "suite.csv"
    file.write_bytes(content)
    with pytest.raises(UserError) as raised:
        read_suite(str(file))
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 400
