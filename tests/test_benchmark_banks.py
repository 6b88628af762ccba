"""The reading of Nsight Compute's report by benchmarks/bank_conflicts.py; the figures themselves are in benchmarks/results."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(HERE.parent / "benchmarks"), *sys.path])  # as where the file is run
        yield importlib.import_module("bank_conflicts")


def sample(benchmark: ModuleType, launches: list[list[str]], without: str = "") -> str:
    """As `ncu --csv --page raw --print-units base` writes it, with its own lines before."""
    names = [name for name in benchmark.METRICS if name != without]
    kept = [[value for name, value in zip(benchmark.METRICS, row, strict=True) if name != without] for row in launches]
    head = ["ID", "Process ID", "Kernel Name", *names]
    rows = [head, ["", "", "", *("inst" for _ in names)]] + [[str(i), "7", "f(int, int)", *row] for i, row in enumerate(kept)]
    table = "\n".join(",".join(f'"{cell}"' for cell in row) for row in rows)
    return f"==PROF== Connected to process 7\n==PROF== Disconnected from process 7\n{table}\n"


# conflicts of loads and stores, wavefronts of both, instructions: ld.shared, ldmatrix, st.shared
LAUNCH = ["7,000", "0", "8,000", "512", "1,000", "0", "128"]


def test_numbers_have_commas_and_some_are_missing(benchmark: ModuleType) -> None:
    first, second = benchmark.read_report(sample(benchmark, [LAUNCH, [*LAUNCH[:5], "n/a", ""]]))
    assert list(first.values()) == [7000, 0, 8000, 512, 1000, 0, 128]
    assert list(second.values())[5:] == [None, None]


def test_a_metric_that_the_gpu_lacks_is_missing_and_the_rest_is_there(benchmark: ModuleType) -> None:
    (only,) = benchmark.read_report(sample(benchmark, [LAUNCH], without="smsp__inst_executed_op_ldsm.sum"))
    assert only["smsp__inst_executed_op_ldsm.sum"] is None
    assert benchmark.cells("ld", 8, only)[-1] == "8.00"


def test_a_report_without_a_table_is_shown(benchmark: ModuleType) -> None:
    with pytest.raises(ValueError, match="ERR_NVGPUCTRPERM"):
        benchmark.read_report("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n")


def test_ways_are_wavefronts_by_those_without_conflicts(benchmark: ModuleType) -> None:
    """8,000 wavefronts, 7,000 of them for conflicts, by 1,000 instructions: 8 ways. 512 by 128, none of them: 1 way of 4 phases."""
    (found,) = benchmark.read_report(sample(benchmark, [LAUNCH]))
    assert benchmark.cells("ld", 8, found) == ["8", "8.00", "7000", "8000", "1000", "8.00"]
    assert benchmark.cells("st", None, found) == ["-", "1.00", "0", "512", "128", "4.00"]


def test_what_is_predicted_of_each_kernel(benchmark: ModuleType) -> None:
    predicted = [(case.predicted().ld, case.predicted().st) for case in benchmark.CASES]
    assert predicted == [(1, 1), (1, 1), (None, 1), (None, 1), (None, 2), (1, 1), (8, 1), (32, 1), (1, 1)]


def test_the_report_has_a_row_of_each_kernel_for_loads_and_stores(benchmark: ModuleType) -> None:
    launches = benchmark.read_report(sample(benchmark, [LAUNCH] * len(benchmark.CASES)))
    text = benchmark.report(launches, "a GPU")
    assert text.count("| 16 x 16 floats down a column | 8 | 8.00 | 7000 | 8000 | 1000 | 8.00 |") == 1
    assert text.count("\n| 16 x 16 floats down a column |") == 2
    with pytest.raises(AssertionError, match="1 launches were counted"):
        benchmark.report(launches[:1], "a GPU")
