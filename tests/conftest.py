"""Fixtures that several test files share: chips, golden files, and the marker of tests that need a GPU."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from search_spaces.gpu_files import load_gpu
from search_spaces.hardware import Hardware

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/ from what the code gives now")
    parser.addoption("--fuzz", action="store_true", help="try ten times as many mutated inputs")


def has_gpu() -> bool:
    if importlib.util.find_spec("pynvml") is None:
        return False
    import pynvml

    try:
        pynvml.nvmlInit()
        return bool(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not has_gpu():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session", autouse=True)
def no_files_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Constants that the person at this machine fitted do not change what tests see; nor does their database."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with tests/golden/NAME; --update-golden writes it."""

    def check(name: str, text: str) -> None:
        file = GOLDEN / name
        if request.config.getoption("--update-golden"):
            GOLDEN.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
        assert file.is_file(), f"{file} is missing; run pytest --update-golden and read what it wrote"
        assert text == file.read_text(encoding="utf-8")

    return check


@pytest.fixture
def h100() -> Hardware:
    return load_gpu("h100")


@pytest.fixture
def a100() -> Hardware:
    return load_gpu("a100")


@pytest.fixture
def h200() -> Hardware:
    return load_gpu("h200")


@pytest.fixture
def made_up_gpu(h100: Hardware) -> Hardware:
    """20 TFLOP/s of fp32 and 1 TB/s: ridge at 20 FLOP/B."""
    return dataclasses.replace(h100, name="made-up", peak_flops={"fp32": 20e12}, dram_bytes_per_second=1e12)
