"""Which winners an export holds: every one, by the name that a look-up gives it, or a sentence on why it is not there."""

from __future__ import annotations

import importlib.util
import random
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from store_samples import COMPILED, ENVIRONMENT, HASHES, NO_GPU, finalist, record, timed

from db.store import Store, open_store
from search_spaces.errors import UserError
from search_spaces.gpu_files import load_gpu
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule, parse_schedule
from tuner import exporters, exporting
from tuner.exporters import Entry, ExportSettings, load_exporter, select
from tuner.exporting import ExportWish, export_text
from tuner.kernels import kernel_hashes
from tuner.operands import TORCH_NAMES

POINTER = parse_schedule("pointer 32x32x32 w4 s2")
SCHEDULES = [
    POINTER,
    *map(parse_schedule, ("tma 64x64x64 w4 s3", "tma 64x64x64 w4 s3 d1", "gemv 1x2x1024 w2", "wgmma 128x128x64 w8 s4 p1 e2")),
]
H200 = load_gpu("h200")


def entry(problem: Problem, schedule: Schedule = POINTER, median_us: float | None = 5.0) -> Entry:
    return Entry(problem=problem, schedule=schedule, median_us=median_us)


def module_of(text: str, folder: Path) -> ModuleType:
    """The exported module; Triton reads the source of its kernels, so that it has to be a file."""
    file = folder / "exported.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location("exported", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["exported"] = module
    spec.loader.exec_module(module)
    return module


def strides_of(shape: tuple[int, int], layout: str, leading: int) -> Iterator[tuple[int, int]]:
    """All kinds of strides that torch may give a matrix so stored: along an extent of 1 any."""
    fixed = (leading, 1) if layout == "n" else (1, leading)
    for down in (fixed[0],) if shape[0] > 1 else (fixed[0], 0, 1, 7, shape[1], 4096):
        for across in (fixed[1],) if shape[1] > 1 else (fixed[1], 0, 1, 7, shape[0], 4096):
            yield down, across


def tensor(dtype: str, shape: tuple[int, int], strides: tuple[int, int]) -> torch.Tensor:
    elements = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    return torch.empty(elements, dtype=getattr(torch, TORCH_NAMES[dtype])).as_strided(shape, strides)


def vector_problems() -> list[Problem]:
    """With one, two or three extents of 1, all layouts, dense and with gaps; no two of one look-up."""
    draw, found = random.Random(0), []
    for index in range(160):
        extents = [draw.choice((1, 1, 8, 17, 64)) for _ in range(2)] + [1]
        draw.shuffle(extents)
        m, n, k = extents
        unique = [place for place, extent in enumerate(extents) if extent > 1]
        if unique:
            extents[unique[0]] = 2 * index + draw.choice((100, 101))
            m, n, k = extents
        layout, gap = draw.choice(("nn", "nt", "tn", "tt")), draw.choice((0, 0, 3, 8))
        dense = Problem(m=m, n=n, k=k, dtype=draw.choice(("fp16", "bf16")), layout=layout)
        found.append(replace(dense, lda=dense.lda + gap, ldb=dense.ldb + gap))
    return found


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModuleType, list[Entry]]:
    python = load_exporter("python")
    draw = random.Random(1)
    entries = []
    for index, problem in enumerate(vector_problems()):
        able = [one for one in SCHEDULES if python.obstacle(entry(problem, one)) is None]
        entries.append(entry(problem, replace(draw.choice(able), group_m=index + 1)))
    kept, _ = select(entries, python)
    return module_of(python.export(kept), tmp_path_factory.mktemp("vectors")), kept


def test_a_vector_is_found_however_torch_writes_its_strides(vectors: tuple[ModuleType, list[Entry]]) -> None:
    module, kept = vectors
    assert len(kept) > 120
    assert {one.schedule.family for one in kept} == {"pointer", "tma", "gemv", "wgmma"}
    wrong = []
    for one in kept:
        p = one.problem
        c = tensor(p.out_dtype, (p.m, p.n), (p.ldc, 1))
        for a_strides in strides_of((p.m, p.k), p.layout[0], p.lda):
            for b_strides in strides_of((p.k, p.n), p.layout[1], p.ldb):
                how, schedule = module.plan(tensor(p.dtype, (p.m, p.k), a_strides), tensor(p.dtype, (p.k, p.n), b_strides), c)
                if (how, schedule.group_m) != ("exact", one.schedule.group_m):
                    wrong.append((p, a_strides, b_strides, how))
    assert wrong == []


@pytest.mark.parametrize(
    ("shape", "tuned", "asked"),
    [
        ((1, 512, 1024), "tn", "nn"),
        ((64, 1, 1024), "nn", "nt"),
        ((512, 64, 1), "tt", "nn"),
        ((1, 1, 1024), "tn", "nt"),
        ((1, 1, 1), "tt", "nn"),
    ],
)
def test_a_vector_tuned_in_one_layout_answers_in_the_other(shape: tuple[int, int, int], tuned: str, asked: str, tmp_path: Path) -> None:
    """As torch makes the operands of x @ w: dense, by `t()` where the layout says so."""
    m, n, k = shape
    problem = Problem(m=m, n=n, k=k, layout=tuned)
    module = module_of(load_exporter("python").export([entry(problem)]), tmp_path)
    a = torch.empty(m, k, dtype=torch.bfloat16) if asked[0] == "n" else torch.empty(k, m, dtype=torch.bfloat16).t()
    b = torch.empty(k, n, dtype=torch.bfloat16) if asked[1] == "n" else torch.empty(n, k, dtype=torch.bfloat16).t()
    assert module.plan(a, b, torch.empty(m, n, dtype=torch.bfloat16))[0] == "exact"
    space: dict[str, Any] = {}
    exec(load_exporter("triton").export([entry(problem)]), space)
    assert {(*shape, "bf16", "bf16", layout) for layout in (tuned, asked)} <= set(space["CONFIGS"])


def test_a_matrix_stored_otherwise_is_no_vector_and_not_found(tmp_path: Path) -> None:
    module = module_of(load_exporter("python").export([entry(Problem(m=64, n=96, k=80, layout="nn"))]), tmp_path)
    x, w, out = (torch.empty(shape, dtype=torch.bfloat16) for shape in ((64, 80), (96, 80), (64, 96)))
    assert module.plan(x, w.t(), out)[0] == "default"


PLAIN = Problem(m=16, n=64, k=1025)  # rows of A and B start between multiples of 16 bytes
PACKED = PLAIN.prepacked("b")  # ldb 1088


def test_a_plain_and_a_prepacked_product_each_keep_their_schedule(tmp_path: Path) -> None:
    entries = [entry(PLAIN, replace(POINTER, group_m=2), 7.8), entry(PACKED, replace(POINTER, group_m=3), 3.9)]
    for name in exporters.exporter_names():
        kept, notes = select(entries, load_exporter(name))
        assert (len(kept), notes) == (2, [])
    module = module_of(load_exporter("python").export(entries), tmp_path)
    a, out = torch.empty(16, 1025, dtype=torch.bfloat16), torch.empty(16, 64, dtype=torch.bfloat16)
    dense, packed = torch.empty(64, 1025, dtype=torch.bfloat16), torch.empty(64, 1088, dtype=torch.bfloat16)[:, :1025]
    assert [(how, schedule.group_m) for how, schedule in (module.plan(a, b.t(), out) for b in (dense, packed))] == [
        ("exact", 2),
        ("exact", 3),
    ]
    space: dict[str, Any] = {}
    exec(load_exporter("triton").export(entries), space)
    assert set(space["CONFIGS"]) == {(16, 64, 1025, "bf16", "bf16", "nt"), (16, 64, 1025, "bf16", "bf16", "nt, ldb 1088")}


def test_a_schedule_for_other_rows_serves_where_it_is_supported(tmp_path: Path) -> None:
    """Nothing is tuned for these rows: a pointer schedule takes any, one by TMA only aligned ones."""
    a, out = torch.empty(16, 1025, dtype=torch.bfloat16), torch.empty(16, 64, dtype=torch.bfloat16)
    for schedule, answer in ((POINTER, ["near", "near"]), (parse_schedule("tma 64x64x64 w4 s3"), ["default", "default"])):
        aligned = replace(PACKED, lda=1088)
        module = module_of(load_exporter("python").export([entry(aligned, schedule)]), tmp_path)
        given = (torch.empty(64, width, dtype=torch.bfloat16)[:, :1025] for width in (1025, 1088))
        assert [module.plan(a, b.t(), out)[0] for b in given] == answer


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_that_a_consumer_cannot_tell_apart_the_faster_is_kept_and_the_other_named(first: int) -> None:
    dense, apart = Problem(m=16, n=64, k=1024), Problem(m=16, n=64, k=1024, ldb=2048)
    entries = [entry(dense, median_us=7.8), entry(apart, median_us=3.9)]
    kept, notes = select(entries[first:] + entries[:first], load_exporter("python"))
    assert [one.problem for one in kept] == [apart]
    kept_one = "16x64x1024 bf16 nt, ldb 2048, which is kept (3.9 us)"
    assert notes == [f"16x64x1024 bf16 nt: left out (7.8 us): python cannot tell it from {kept_one}"]
    assert select(entries, load_exporter("triton")) == ([entries[0], entries[1]], [])


def test_a_schedule_that_does_not_run_on_the_problem_s_tensors_is_named() -> None:
    entries = [
        entry(Problem(m=64, n=64, k=1024)),
        entry(PLAIN, parse_schedule("tma 64x64x64 w4 s3")),
        entry(Problem(m=8, n=8, k=8, dtype="fp32")),
    ]
    kept, notes = select(entries, load_exporter("python"))
    assert kept == entries[:1]
    assert re.match(r"16x64x1025 bf16 nt: left out: row stride of A is 2050 bytes; it must be a multiple of 16", notes[0])
    assert re.match(r"8x8x8 fp32 nt: left out: A is torch.float32 and B is torch.float32; both must be float16", notes[1])
    assert len(notes) == 2


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (Problem(m=1, n=2, k=3), "1x2x3 bf16 nt"),
        (Problem(m=4, n=2, k=3, dtype="fp16", out_dtype="fp32", layout="tn"), "4x2x3 fp16 -> fp32 tn"),
        (Problem(m=4, n=2, k=3, lda=8, ldb=9, ldc=10, alignment_bytes=2), "4x2x3 bf16 nt, lda 8, ldb 9, ldc 10, aligned to 2 B"),
        (Problem(m=1, n=2, k=3, lda=8, ldc=10), "1x2x3 bf16 nt, lda 8, ldc 10"),
    ],
)
def test_a_problem_is_described_by_all_that_tells_it_apart(problem: Problem, text: str) -> None:
    assert problem.text == text


# from a database

HASH = kernel_hashes()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    here = SimpleNamespace(device_name="NVIDIA H200", driver="570.1", triton="3.6.0", torch="2.11.0")
    monkeypatch.setattr(exporting, "_here", lambda hardware: here)
    with open_store(tmp_path / "tuner.db") as made:
        yield made


def crown(store: Store, problem: Problem, schedule: Schedule = POINTER, environment: Any = ENVIRONMENT, **changes: Any) -> None:
    run = store.begin_run(environment, "{}")
    changes = {"kernel_hash": HASH[schedule.family], "environment": environment} | changes
    trial = store.add(run, record(timed(190.0), problem=problem, schedule=schedule, **changes))
    store.add_finalists(run, [finalist(trial, 1, 1.05, tied=False)])
    store.finish_run(run, "finished")


def exported(store: Store, consumer: str = "triton", **wish: Any) -> tuple[str, list[str]]:
    return export_text(consumer, ExportWish(**wish), H200, settings=ExportSettings(), location=store.location)


def keys(text: str) -> set[tuple[Any, ...]]:
    space: dict[str, Any] = {}
    exec(text, space)
    return set(space["CONFIGS"])


FOUR = [
    Problem(m=64, n=64, k=1024),
    Problem(m=64, n=64, k=1024, dtype="fp16"),
    Problem(m=64, n=64, k=1024, layout="nn"),
    Problem(m=64, n=64, k=1024, dtype="fp16", out_dtype="fp32", layout="tt"),
]
KEYS = [(64, 64, 1024, *kind) for kind in (("bf16", "bf16", "nt"), ("fp16", "fp16", "nt"), ("bf16", "bf16", "nn"), ("fp16", "fp32", "tt"))]


def test_without_shapes_all_winners_are_exported_whatever_their_types_and_layout(store: Store) -> None:
    for problem in FOUR:
        crown(store, problem)
    text, notes = exported(store)
    assert (keys(text), notes) == (set(KEYS), [])
    assert exported(store, "python")[1] == []


@pytest.mark.parametrize(
    ("wish", "kept"),
    [
        ({"dtype": "bf16"}, [0, 2]),
        ({"layout": "nt"}, [0, 1]),
        ({"dtype": "fp16", "layout": "nt"}, [1]),
        ({"out_dtype": "fp32"}, [3]),
    ],
)
def test_types_and_layouts_that_are_given_filter_and_what_they_leave_out_is_named(
    wish: dict[str, str], kept: list[int], store: Store
) -> None:
    for problem in FOUR:
        crown(store, problem)
    text, (note,) = exported(store, **wish)
    assert keys(text) == {KEYS[index] for index in kept}
    reason, _, names = note.partition(": ")
    assert reason == "left out, not of the --dtype, --out-dtype or --layout asked for"
    assert set(names.split("; ")) == {problem.text for index, problem in enumerate(FOUR) if index not in kept}


def test_named_shapes_may_be_of_any_problem(store: Store) -> None:
    crown(store, PACKED)
    crown(store, replace(FOUR[0], alignment_bytes=2, ldc=100))
    assert keys(exported(store, shapes=["16x64x1025"], prepack="b")[0]) == {(16, 64, 1025, "bf16", "bf16", "nt, ldb 1088")}
    assert len(keys(exported(store, shapes=["16x64x1025"], leading_dimensions=(0, 1088, 0))[0])) == 1
    assert len(keys(exported(store, shapes=["64x64x1024"], leading_dimensions=(0, 0, 100), alignment_bytes=2)[0])) == 1
    with pytest.raises(UserError, match="nothing is known for 16x64x1025 bf16 nt on h200-sxm-141gb; run tuner search for it first"):
        exported(store, shapes=["16x64x1025"])


@pytest.mark.parametrize(
    ("wish", "sentence"),
    [
        ({"prepack": "c", "shapes": ["1x1x1"]}, "--prepack 'c': give a, b or ab"),
        ({"prepack": "a"}, "--prepack is of the problems that --shapes names, and none is named"),
        ({"leading_dimensions": (0, 8, 0)}, "--ld is of the problems"),
        ({"alignment_bytes": 16}, "--alignment is of the problems"),
        ({"dtype": "fp61"}, "unknown dtype 'fp61'"),
        ({"layout": "xx"}, "unknown layout 'xx'"),
    ],
)
def test_a_wish_that_cannot_be_is_refused(wish: dict[str, Any], sentence: str, store: Store) -> None:
    crown(store, FOUR[0])
    with pytest.raises(UserError, match=sentence):
        exported(store, **wish)


def test_what_is_measured_by_unordered_schedules_only_is_named(store: Store) -> None:
    crown(store, FOUR[0])
    crown(store, FOUR[1], replace(POINTER, split_k=2, fused_reduction=2))
    text, notes = exported(store)
    assert keys(text) == {KEYS[0]}
    assert notes == [
        "left out, measured with schedules only whose bits may differ from run to run; --unordered takes them: 64x64x1024 fp16 nt"
    ]
    assert keys(exported(store, narrowed={"unordered": True})[0]) == set(KEYS[:2])


def test_what_has_been_disproved_is_named_and_the_others_are_exported(store: Store) -> None:
    for problem in FOUR[:2]:
        crown(store, problem)
    run = store.begin_run(ENVIRONMENT, "{}")
    wrong = replace(COMPILED, status="wrong_answer")
    store.add(run, record(wrong, problem=FOUR[1], schedule=POINTER, kernel_hash=HASH["pointer"]))
    text, notes = exported(store)
    assert (keys(text), notes) == (
        {KEYS[0]},
        ["left out, of what was measured nothing holds any more; search again: 64x64x1024 fp16 nt"],
    )


def test_nothing_to_export_says_why(store: Store) -> None:
    with pytest.raises(UserError, match=r"there is nothing to export for h200-sxm-141gb in .*: run tuner search first, or name --shapes"):
        exported(store)
    crown(store, FOUR[0])
    with pytest.raises(UserError, match=r"nothing to export .*: left out, not of the --dtype.* asked for: 64x64x1024 bf16 nt"):
        exported(store, dtype="fp16")


def test_the_header_names_gpu_driver_libraries_and_day_of_each_source(store: Store) -> None:
    crown(store, FOUR[0])
    text, _ = exported(store)
    assert re.search(r"\nSource: NVIDIA H200, driver 570\.1, Triton 3\.6\.0, torch 2\.11\.0, \d{4}-\d\d-\d\d\n", text)
    assert "Caution" not in text


@pytest.mark.parametrize(
    ("changes", "caution"),
    [
        ({"triton": "3.5.0"}, "measured with Triton 3.5.0, not 3.6.0"),
        ({"torch": "2.10.0"}, "measured with torch 2.10.0, not 2.11.0"),
        ({"driver": "560.9"}, "measured with driver 560.9, not 570.1"),
        ({"device_name": "NVIDIA H100 80GB HBM3"}, "measured on NVIDIA H100 80GB HBM3, which is no NVIDIA H200"),
    ],
)
def test_what_was_measured_elsewhere_is_called_so(changes: dict[str, str], caution: str, store: Store) -> None:
    crown(store, FOUR[0], environment=replace(ENVIRONMENT, **changes))
    text, notes = exported(store, narrowed={"any_environment": "device_name" in changes})
    assert f"\nCaution: {caution}" in text
    assert f"# pointer: 190.5 us, 1.050x the library; {caution}" in text
    assert any(note.startswith(caution) and note.endswith(": 64x64x1024 bf16 nt") for note in notes)


def test_what_holds_of_all_is_said_once(store: Store) -> None:
    for problem in FOUR:
        crown(store, problem, environment=replace(ENVIRONMENT, triton="3.5.0"))
    assert exported(store)[1] == ["measured with Triton 3.5.0, not 3.6.0: all 4 of them"]


def test_what_another_kernel_source_measured_or_nobody_did_is_called_so(store: Store) -> None:
    crown(store, FOUR[0], kernel_hash=HASHES["pointer"])
    run = store.begin_run(NO_GPU, "{}")
    store.add(run, record(COMPILED, problem=FOUR[1], schedule=POINTER, environment=NO_GPU, kernel_hash=HASH["pointer"]))
    assert "190.5 us, 1.050x the library; the kernel's source has changed since it was measured\n" in exported(store)[0]
    text, notes = exported(store, shapes=["64x64x1024"], dtype="fp16")
    assert "# pointer: not measured\n" in text
    assert notes == ["not measured, exported as the model's first choice: 64x64x1024 fp16 nt"]


# plug-ins


@pytest.fixture
def own_exporter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def write(text: str) -> None:
        (tmp_path / "mine.py").write_text(text)

    monkeypatch.setattr(exporters, "__path__", [*exporters.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "tuner.exporters.mine", raising=False)
    return write


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "import missing_module",
            r"exporter mine cannot be loaded \(ModuleNotFoundError: No module named 'missing_module'\); mend its file",
        ),
        ("def export(:", r"exporter mine cannot be loaded \(SyntaxError: "),
        ("'''Nothing.'''", r"exporter mine has no function `export`; .*mine\.py has to define it"),
        ("export = 'text'", r"exporter mine has no function `export`"),
        ("def export(entries, settings=None): return ''\nkey = 3", r"exporter mine has no function `key`"),
    ],
)
def test_a_file_that_is_no_exporter_is_a_sentence_and_the_others_live(
    text: str, sentence: str, own_exporter: Callable[[str], None]
) -> None:
    own_exporter(text)
    with pytest.raises(UserError, match=sentence):
        load_exporter("mine")
    assert load_exporter("triton").name == "triton"


def test_an_exporter_of_one_function_is_enough(own_exporter: Callable[[str], None], store: Store) -> None:
    own_exporter("'''One line a problem.\n\nMore.'''\ndef export(entries, settings=None): return str(len(entries))")
    crown(store, FOUR[0])
    assert load_exporter("mine").summary == "One line a problem."
    assert exported(store, "mine") == ("1", [])


def test_an_exporter_that_gives_no_text_is_a_sentence(own_exporter: Callable[[str], None], store: Store) -> None:
    own_exporter("def export(entries, settings=None): return len(entries)")
    crown(store, FOUR[0])
    with pytest.raises(UserError, match="exporter mine gave 'int' in place of a text; mend its `export`"):
        exported(store, "mine")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", "export needs --to, which says who takes the schedules: give --to python or --to triton"),
        ("pythn", "no exporter named 'pythn'; known: python, triton; did you mean python?"),
        ("__init__", "no exporter named '__init__'"),
        ("\x1b[2J", r"no exporter named '\\x1b\[2J'"),
    ],
)
def test_a_name_that_no_exporter_has_is_a_sentence(name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        load_exporter(name)
