"""What every exporter found keeps to, and that the exported module multiplies right where nothing of this repository is."""

from __future__ import annotations

import ast
import builtins
import inspect
import itertools
import json
import math
import os
import py_compile
import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from search_spaces.errors import UserError
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule
from tuner.exporters import Entry, ExportSettings, exporter_names, load_exporter
from tuner.kernels import family_module, family_names

SCRIPT = Path(__file__).parent / "data" / "run_exported.py"
every_exporter = pytest.mark.parametrize("name", exporter_names())


def entry(m=64, schedule=None, **changes):
    problem = Problem(m=m, n=96, k=80, dtype=changes.pop("dtype", "fp16"), layout=changes.pop("layout", "nt"))
    schedule = schedule or Schedule(family="pointer", cta_m=16, cta_n=32, cta_k=16, stages=3, split_k=3)
    return Entry(problem=problem, schedule=schedule, **({"provenance": "NVIDIA H200, Triton 3.6.0, 2026-01-31"} | changes))


TMA = Schedule(
    family="tma", cta_m=64, cta_n=64, cta_k=32, stages=3, group_m=2, persistent_ctas_per_sm=1, epilogue_subtile=2, flatten=1
)  # fmt: skip
PAIR = (entry(64, TMA, median_us=12.345, library_ratio=1.0521), entry(16, median_us=2.5, library_ratio=0.98))

GEMV = Schedule(family="gemv", cta_m=1, cta_n=2, cta_k=1024, warps=2)
WGMMA = Schedule(family="wgmma", cta_m=128, cta_n=128, cta_k=64, warps=8, stages=4, persistent_ctas_per_sm=1, epilogue_subtile=2)
OF_EVERY_FAMILY = (*PAIR, entry(1, GEMV), entry(128, WGMMA))


def export(name, entries=PAIR, **rename):
    return load_exporter(name).export(entries, ExportSettings(rename=rename))


def copied_sources():
    """Name -> source of everything that the kernel families give to be copied."""
    items = {item for name in family_names() for item in family_module(name).EXPORTS}
    return {item.__name__: inspect.getsource(getattr(item, "fn", item)) for item in items}


@every_exporter
def test_text_is_the_kept_one(name, golden):
    """Copied kernels are named only, and the version of the tool is left out: they change for reasons of their own."""
    text = re.sub(r"Written by tuner .*", "Written by tuner VERSION.", export(name))
    for item, source in copied_sources().items():
        text = text.replace(source, f"<the source of {item}>\n")
    golden(f"exporter_{name}.txt", text)
    assert "VERSION" in text


@every_exporter
def test_order_of_the_entries_changes_nothing(name):
    many = [entry(m, layout=layout, dtype=dtype) for m in (1, 200, 16) for layout in ("nt", "nn") for dtype in ("fp16", "bf16")]
    assert export(name, many[::-1]) == export(name, many)


@every_exporter
def test_of_two_entries_for_a_problem_the_faster_one_is_exported(name):
    slow, fast = entry(16, TMA, median_us=3.0), entry(16, median_us=2.0)
    unmeasured = replace(slow, median_us=None)
    assert export(name, [fast]) == export(name, [slow, unmeasured, fast])


@every_exporter
def test_a_changed_table_has_another_hash(name):
    hashes = {re.search(r"SHA-256 of the table: (\w{16})", export(name, [entry(m)]))[1] for m in (16, 17)}
    assert len(hashes) == 2


@every_exporter
def test_header_says_where_each_schedule_comes_from(name):
    text = export(name, [*PAIR, entry(1, provenance="NVIDIA H200, Triton 3.9.0, 2026-02-01")])
    assert "\nSource: NVIDIA H200, Triton 3.6.0, 2026-01-31\nSource: NVIDIA H200, Triton 3.9.0, 2026-02-01\n" in text


@every_exporter
def test_what_was_not_measured_is_called_so(name):
    assert "not measured\n" in export(name, [entry(1), entry(64, median_us=2.0)])


@every_exporter
def test_no_entries_are_no_export(name):
    with pytest.raises(UserError, match="0 schedules to export"):
        export(name, [])


@every_exporter
def test_every_exporter_says_what_it_is(name):
    assert load_exporter(name).summary.endswith(".")


@every_exporter
def test_source_compiles_and_imports_torch_triton_and_the_standard_library_only(name, tmp_path):
    file = tmp_path / "exported.py"
    file.write_text(export(name))
    assert py_compile.compile(str(file), doraise=True)
    tree = ast.parse(file.read_text())
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {module.partition(".")[0] for module in modules} <= {"torch", "triton"} | sys.stdlib_module_names
    assert not re.search(r"\bprint\(", file.read_text())


@every_exporter
@pytest.mark.parametrize("entries", [PAIR, OF_EVERY_FAMILY], ids=["two families", "all families"])
def test_every_name_is_defined_and_every_import_used(name, entries):
    """Kernels are copied by name: what one needs and its family does not give would be missing at the first call only."""
    nodes = list(ast.walk(ast.parse(export(name, entries))))
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    written = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    written |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    written |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) and getattr(node, "module", "") != "__future__"]
    imported = {alias.asname or alias.name.partition(".")[0] for node in imports for alias in node.names}
    assert read - written - imported - set(dir(builtins)) == set()
    assert imported - read == set()


def test_exporters_are_found_by_the_name_of_their_file():
    assert {"python", "triton"} <= set(exporter_names())
    with pytest.raises(UserError, match=r"no exporter named 'vlm'; known: .*python.*triton"):
        load_exporter("vlm")


def test_the_entries_are_of_every_family():
    assert {one.schedule.family for one in OF_EVERY_FAMILY} == set(family_names())


def test_families_give_every_name_once():
    """Else, of two helpers of one name in an exported module, the later would silently stand for both."""
    items = {item for name in family_names() for item in family_module(name).EXPORTS}
    assert [name for name, count in Counter(item.__name__ for item in items).items() if count > 1] == []


def configs(text):
    """CONFIGS of an exported text, with each Config as (keywords, warps, stages)."""
    import triton

    space = {}
    exec(compile(text, "exported", "exec"), space)
    assert all(isinstance(config, triton.Config) for config in space["CONFIGS"].values())
    return {key: (config.kwargs, config.num_warps, config.num_stages) for key, config in space["CONFIGS"].items()}


def test_triton_configs_hold_the_schedules():
    pointer = {"CTA_M": 16, "CTA_N": 32, "CTA_K": 16, "SPLIT_K": 3, "GROUP_M": 1, "FUSED_REDUCTION": 0, "SWAP_AB": 0}
    tma = {
        "CTA_M": 64,
        "CTA_N": 64,
        "CTA_K": 32,
        "SPLIT_K": 1,
        "GROUP_M": 2,
        "PERSISTENT_CTAS_PER_SM": 1,
        "EPILOGUE_SUBTILE": 2,
        "FLATTEN": 1,
        "STREAM_K": 0,
        "FUSED_REDUCTION": 0,
        "SWAP_AB": 0,
        "PAD": 0,
    }
    assert configs(export("triton")) == {
        (16, 96, 80, "fp16", "fp16", "nt"): (pointer, 4, 3),
        (64, 96, 80, "fp16", "fp16", "nt"): (tma, 4, 3),
    }


def test_triton_parameters_take_the_consumer_s_names():
    (keywords, _, _), *_ = configs(export("triton", PAIR, CTA_M="BLOCK_SIZE_M", GROUP_M="GROUP_SIZE_M")).values()
    unused = {"FUSED_REDUCTION": 0, "SWAP_AB": 0}
    assert keywords == {"BLOCK_SIZE_M": 16, "CTA_N": 32, "CTA_K": 16, "SPLIT_K": 3, "GROUP_SIZE_M": 1} | unused


@pytest.mark.parametrize(
    ("name", "rename", "sentence"),
    [
        ("triton", {"BLOCK_M": "X"}, "no parameter 'BLOCK_M' to rename; these schedules have CTA_K, CTA_M"),
        ("triton", {"CTA_M": "CTA_N"}, "12 parameters would have 11 names"),
        ("python", {"CTA_M": "X"}, "1 parameters to rename"),
    ],
)
def test_renames_that_reach_nothing_are_refused(name, rename, sentence):
    with pytest.raises(UserError, match=sentence):
        export(name, PAIR, **rename)


def run_exported(folder, dtype, environment):
    """What `run_exported.py` says of an export, run in an isolated interpreter and another folder."""
    file = folder / "exported.py"
    file.write_text(export("python", [replace(item, problem=replace(item.problem, dtype=dtype, out_dtype=dtype)) for item in PAIR]))
    torch_name = {"fp16": "float16", "bf16": "bfloat16"}[dtype]
    command = [sys.executable, "-I", SCRIPT, file, torch_name]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory):
    """float16, since Triton's interpreter multiplies the bits of bfloat16 as if they were whole numbers."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TRITON"))}
    return run_exported(tmp_path_factory.mktemp("elsewhere"), "fp16", outside | {"TRITON_INTERPRET": "1"})


CASES = {
    "M=1": "near",
    "M=7": "near",
    "M=16": "exact",
    "M=64": "exact",
    "M=100": "near",
    "M=300": "default",
    "nt": "near",
    "nn": "default",
    "tn": "default",
    "tt": "default",
    "every second column of A": "default",
    "A with rows 163 elements apart": "default",
    "A one element off": "default",
    "A a row that is repeated": "default",
    "B a column that is repeated": "default",
    "one element for all of A": "default",
    "one row of A, strides (7, 1)": "near",
    "one row of A, every second element": "default",
    "one row of out, stride 0": "near",
    "A and out side by side in one buffer": "exact",
    "A in the first rows of a buffer, out in the next": "near",
    "out by columns": "",
    "out float32": "default",
    "out inside a wider buffer": "exact",
    "what is beside it stays": "",
    "without out": "exact",
    "another N and K": "default",
    "one column": "default",
    "M=0": "",
    "N=0": "",
    "K=0": "",
}


@pytest.mark.parametrize("case", CASES)
def test_exported_module_multiplies_right_by_the_stated_rule(case, interpreted):
    """Outputs and workspaces start as NaNs. Tuned are M = 16 and M = 64 at N = 96, K = 80, layout nt."""
    assert interpreted["results"][case] == [True, CASES[case]]


def test_every_case_that_was_run_is_expected(interpreted):
    assert set(interpreted["results"]) == set(CASES)


def test_exported_module_needs_nothing_of_this_repository(interpreted):
    assert interpreted["repository"] == []


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("inner extents", r"A is \[4, 5\] and B is \[6, 7\]"),
        ("out", r"out is \[4, 6\]; give \[4, 7\]"),
        ("types", "A is torch.float16 and B is"),
        ("a row that is repeated", r"out is \[64, 96\] with strides \[0, 1\]: elements of it share memory; give each its own"),
        ("a column that is repeated", r"out is \[64, 96\] with strides \[1, 0\]: elements of it share memory"),
        ("one element for all of it", r"out is \[64, 96\] with strides \[0, 0\]: elements of it share memory"),
        ("rows that begin within the last", r"out is \[64, 96\] with strides \[95, 1\]: elements of it share memory"),
        ("columns that begin within the last", r"out is \[64, 96\] with strides \[1, 63\]: elements of it share memory"),
        ("A itself", "out shares memory with A, which is read while out is written; give it its own"),
        ("B itself", "out shares memory with B"),
        ("A transposed", "out shares memory with A"),
        ("the rows of A but for the first", "out shares memory with A"),
        ("columns of A", "out shares memory with A"),
        ("part of a row of B", "out shares memory with B"),
    ],
)
def test_exported_module_says_what_is_wrong_with_its_arguments(case, sentence, interpreted):
    assert re.match(sentence, interpreted["errors"][case])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_exported_module_multiplies_right_on_the_gpu(dtype, tmp_path):
    answer = run_exported(tmp_path, dtype, dict(os.environ))
    assert {case: right for case, (right, _) in answer["results"].items() if not right} == {}
    assert set(answer["results"]) == {*CASES, "replayed from a CUDA graph"}


@pytest.fixture(scope="module")
def tuned():
    """The look-up of an exported module: (M, tuned Ms) -> how, schedule. It needs neither a GPU nor the interpreter."""
    tree = ast.parse(export("python"))
    wanted = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "tuned"]
    space = {"Schedule": Schedule}
    exec(compile(ast.Module([ast.parse("from __future__ import annotations").body[0], *wanted], []), "exported", "exec"), space)
    return space["tuned"]


@pytest.mark.parametrize(
    ("m", "tuned_for", "answer"),
    [
        (8, {1, 2, 4, 8}, ("exact", 8)),
        (3, {1, 2, 4, 8}, ("near", 4)),
        (9, {1, 2, 4, 8}, ("near", 8)),
        (64, {1, 2, 4, 8}, ("near", 8)),  # 16 rows and 64
        (65, {1, 2, 4, 8}, ("default", None)),
        (4096, {1, 2, 4, 8}, ("default", None)),
        (100, {64, 128, 4096}, ("near", 128)),
        (50, {16, 4096}, ("near", 16)),  # the one above is too far
        (1, {4096}, ("default", None)),
        (65536, {1024}, ("near", 1024)),
        (65536, {1023}, ("default", None)),
        (5, set(), ("default", None)),
    ],
)
def test_a_schedule_serves_its_neighbours_and_no_distant_shape(m, tuned_for, answer, tuned):
    by_rows = {rows: Schedule(family="pointer", cta_m=16, cta_n=16, cta_k=16, group_m=rows) for rows in tuned_for}
    how, schedule = tuned(m, by_rows)
    assert (how, schedule and schedule.group_m) == answer


def test_a_schedule_that_splits_k_serves_no_much_greater_m(tuned):
    """Its workspace grows with M."""
    split = Schedule(family="pointer", cta_m=16, cta_n=16, cta_k=16, split_k=2)
    assert tuned(4096, {1024: split}) == ("near", split)
    assert tuned(4097, {1024: split}) == ("default", None)


def functions_of(text, *names):
    """Functions of an exported module, which need no GPU."""
    wanted = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name in names]
    space = {"math": math}
    exec(compile(ast.Module([ast.parse("from __future__ import annotations").body[0], *wanted], []), "exported", "exec"), space)
    return [space[name] for name in names]


def test_overlaps_are_told_from_places_that_lie_between_each_other():
    """All matrices of few rows and columns and small strides, compared with the places counted one by one."""
    (overlaps,) = functions_of(export("python"), "overlaps_itself")
    for rows, columns, down, across in itertools.product(range(5), range(5), range(9), range(9)):
        places = [i * down + j * across for i in range(rows) for j in range(columns)]
        x = torch.empty(64).as_strided((rows, columns), (down, across))
        assert overlaps(x) == (len(set(places)) < len(places)), (rows, columns, down, across)


def test_memory_is_said_to_be_shared_only_where_it_is_and_seen_in_matrices_of_one_buffer():
    _, _, _, shares = functions_of(export("python"), "layout_of", "span", "lines", "shares_memory")
    draw, buffer, found = random.Random(0), torch.empty(400, dtype=torch.float16), 0
    for _ in range(3000):
        made, places = [], []
        step = draw.choice((9, 12, 16))
        for _ in range(2):
            rows, columns, start = draw.randint(1, 6), draw.randint(1, step), draw.randint(0, 250)
            strides = (step, 1)
            x = buffer.as_strided((rows, columns), strides, start)
            made.append(x.t() if draw.random() < 0.3 else x)
            places.append({start + i * step + j for i in range(rows) for j in range(columns)})
        assert shares(*made) == bool(places[0] & places[1]), [(x.shape, x.stride(), x.storage_offset()) for x in made]
        found += bool(places[0] & places[1])
    assert 500 < found < 2500
