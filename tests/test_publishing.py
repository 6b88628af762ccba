"""Every result of a benchmark names the code that it was taken with, under its title."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmarks"))

from publishing import publish  # noqa: E402

from tuner.code_version import code_version  # noqa: E402

TAKEN = rf"Taken with tuner {re.escape(code_version())}, Python 3\.\d+\.\d+, torch \S+, triton \S+, numpy \S+, 20\d\d-\d\d-\d\d\."


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("# Title\n\nBody\n", rf"# Title\n\n{TAKEN}\n\nBody\n"), ("Body\nmore\n", rf"{TAKEN}\n\nBody\nmore\n")],
)
def test_a_result_names_its_code(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, wanted: str) -> None:
    output = tmp_path / "made" / "result.md"
    publish(output, text)
    assert re.fullmatch(wanted, output.read_text())
    assert capsys.readouterr().out == output.read_text() + "\n"


@pytest.mark.parametrize("program", sorted(path.name for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "publishing"))
def test_every_benchmark_that_writes_a_result_publishes_it(program: str) -> None:
    """A result that is written in another way has no header."""
    text = (ROOT / "benchmarks" / program).read_text(encoding="utf-8")
    assert "write_file" not in text
    assert "write_text" not in text
