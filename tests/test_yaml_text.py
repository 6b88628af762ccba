"""The one reader of YAML and the one of text files: what a text stands for, what is refused, and that refusing costs next to nothing."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.errors import UserError
from search_spaces.text_files import MOST_BYTES, read_text_file
from search_spaces.yaml_text import MOST_DEPTH, MOST_NODES, read_yaml

LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(9))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("132", 132),
        ("+5", 5),
        ("-4", -4),
        ("0", 0),
        ("1830.5", 1830.5),
        (".5", 0.5),
        ("1.5e-06", 1.5e-06),
        ("1e5", 1e5),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("'132'", "132"),
        # what YAML 1.1 reads as another number or another thing stays what is written
        ("0x84", "0x84"),
        ("0o17", "0o17"),
        ("017", "017"),
        ("00.5", "00.5"),
        ("1_000", "1_000"),
        ("12:30:45", "12:30:45"),
        ("1:30", "1:30"),
        (".inf", ".inf"),
        (".nan", ".nan"),
        ("1e999", "1e999"),
        ("1e-999", "1e-999"),
        ("yes", "yes"),
        ("off", "off"),
        ("2026-01-01", "2026-01-01"),
        ("²", "²"),
        ("\u0661\u0662", "\u0661\u0662"),
        ("9" * 100, "9" * 100),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", "9223372036854775808"),
        ("=", "="),
        ("1.2.3", "1.2.3"),
    ],
)
def test_what_a_text_stands_for(text: str, value: object) -> None:
    found = read_yaml("f.yaml", f"a: {text}")["a"]
    assert (found, type(found)) == (value, type(value))


@given(st.recursive(st.booleans() | st.integers(0, 2**40) | st.text("abc xyz", max_size=5), lambda inner: st.lists(inner, max_size=4)))
def test_what_is_written_plainly_reads_as_any_reader_reads_it(value: object) -> None:
    text = yaml.safe_dump({"a": value})
    assert read_yaml("f.yaml", text) == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\nb: 2\na: 3", "f.yaml: 'a' stands twice, on lines 1 and 3; leave one"),
        ("x: {a: 1, a: 2}", "f.yaml: 'a' stands twice, on lines 1 and 1; leave one"),
        ('a: 1\n"a": 2', "f.yaml: 'a' stands twice, on lines 1 and 2; leave one"),
        ("a: &x 1\nb: *x", "f.yaml, line 1: anchors and aliases such as &x are not read; write it out"),
        ("a: *x", "f.yaml, line 1: anchors and aliases such as &x are not read; write it out"),
        (LAUGHS, "f.yaml, line 1: anchors and aliases such as &a are not read; write it out"),
        ("a: 1\n<<: {b: 2}", "f.yaml, line 2: merge keys (<<) are not read; write it out"),
        ("a: !!python/object:os.system x", "f.yaml, line 1: the tag 'tag:yaml.org,2002:python/object:os.system' is not read; leave it out"),
        ("a: !mine {b: 1}", "f.yaml, line 1: the tag '!mine' is not read; leave it out"),
        ("{value: 132, tier: [A]}: 5", "f.yaml, line 1: a key is no plain text; give key: value"),
        ("? [a, b]\n: 1", "f.yaml, line 1: a key is no plain text; give key: value"),
        ("a: 1\n---\nb: 2", "f.yaml, line 2: a second document begins; give one"),
        ("a: 'open", "f.yaml is not YAML, line 1: found unexpected end of stream"),
        ("\ta: 1", "f.yaml is not YAML, line 1: found character that cannot start any token"),
        ("- " * 30 + "a", f"f.yaml, line 1: more than {MOST_DEPTH} levels"),
        ("{a: " * 200_000, f"f.yaml, line 1: more than {MOST_DEPTH} levels"),
        ("[" + "a," * 400_000 + "]", f"f.yaml, line 1: more than {MOST_NODES} values"),
    ],
)
def test_what_is_refused_is_a_sentence_with_the_line_and_takes_little(text: str, sentence: str) -> None:
    tracemalloc.start()
    with pytest.raises(UserError) as raised:
        read_yaml("f.yaml", text)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(raised.value) == sentence
    assert most < 32 * 2**20


@pytest.mark.parametrize("text", ["a: \x00", "a: \x1b[31m", "\ud800", "&" * 1000, "%YAML 9.9\n---\na: 1", "a: b: c", "]", "a: '\\"])
def test_what_is_no_yaml_is_one_printable_sentence(text: str) -> None:
    with pytest.raises(UserError) as raised:
        read_yaml("f.yaml", text)
    assert "f.yaml is not YAML" in str(raised.value)
    assert str(raised.value).isprintable()


def test_a_text_file_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes("\ufeffa: 1\r\nb: \u00e9".encode())
    assert read_text_file(file, "the file", "give another") == "a: 1\r\nb: \u00e9"
    file.write_bytes(b"#" * MOST_BYTES)
    assert len(read_text_file(file, "the file", "give another")) == MOST_BYTES


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_large_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(50 * 2**20)  # sparse: no byte of it is read


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (Path.mkdir, "is a folder, no regular file; give another"),
        (a_pipe, "is a pipe, no regular file; give another"),
        (a_link_to_a_device, "is a device, no regular file; give another"),
        (a_large_file, f"has {50 * 2**20} bytes, more than the {MOST_BYTES} that are read; give another"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links; give another"),
        (lambda path: path.symlink_to(path.parent / "none"), "No such file or directory; give another"),
        (lambda path: path.write_bytes("a: 1".encode("utf-16")), "not UTF-8 text (byte 0 is 0xff); give another"),
        (lambda path: path.write_bytes(b"a: \xe9"), "not UTF-8 text (byte 3 is 0xe9); give another"),
        (lambda path: path.write_bytes(b"a: 1\0"), "it holds a NUL character at 4, so it is no text; give another"),
    ],
)
def test_what_is_no_small_text_file_is_refused(make, sentence, tmp_path: Path) -> None:
    path = tmp_path / "it.yaml"
    make(path)
    with pytest.raises(UserError) as raised:
        read_text_file(path, "the file", "give another")
    assert sentence in str(raised.value)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("name", ["x" * 300, "nul\0", "new\nline", "\udcff", "\x1b[31m"])
def test_a_path_that_cannot_be_is_one_printable_sentence(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        read_text_file(tmp_path / name, "the file", "give another")
    assert str(raised.value).isprintable()
    assert "cannot read the file" in str(raised.value)
