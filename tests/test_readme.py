"""The README is true: its commands run and print what it says, and the make targets and files it names are there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from search_spaces.gpu_files import load_gpu
from search_spaces.space import choose_space, load_space

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```console\n\$ tuner (.*?)\n(.*?)\n```", README, flags=re.DOTALL)


def normal(text: str) -> str:
    """Without what differs from run to run: how long it took."""
    return re.sub(r"in \d+\.\d s", "in # s", text.strip("\n"))


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4


@pytest.mark.parametrize(("command", "output"), EXAMPLES, ids=[command[:40] for command, _ in EXAMPLES])
def test_examples_print_what_the_readme_shows(tmp_path: Path, command: str, output: str) -> None:
    arguments = [str(tmp_path / "t.db") if word == "/tmp/readme.db" else word for word in shlex.split(command)]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    command_line = [sys.executable, "-m", "tuner.cli", *arguments]
    ran = subprocess.run(command_line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert normal(ran.stdout) == normal(output)


def test_the_two_commands_are_targets_that_do_what_is_said() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)$", README, flags=re.MULTILINE):
        assert re.search(rf"^{target}: ", makefile, flags=re.MULTILINE)
    assert "tuner search --shape $(SHAPE) --gpu $(GPU) --db $(DB)" in makefile
    assert (ROOT / ".ci/run").read_text(encoding="utf-8").rstrip().endswith("make test")


def test_files_that_are_named_exist() -> None:
    for path in set(re.findall(r"`((?:benchmarks|search_spaces|cost_models|tuner|db)/[\w./-]+)`", README)):
        assert (ROOT / path).exists(), path


def test_the_gpu_file_in_the_readme_loads(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(title: my card.*?)```", README, flags=re.DOTALL)
    file = tmp_path / "my.yaml"
    file.write_text(text, encoding="utf-8")
    hardware = load_gpu(str(file))
    assert hardware.sms == 100
    assert hardware.fma_per_sm_per_clock["bf16"] == pytest.approx(700e12 / (2 * 100 * 1.7e9))


def test_the_space_and_the_axes_in_the_readme_do_what_is_said(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(base: .*?)```", README, flags=re.DOTALL)
    file = tmp_path / "my.yaml"
    file.write_text(text, encoding="utf-8")
    default, mine = load_space("default").axes, load_space(str(file)).axes
    assert mine == {"tma": default["tma"] | {"cta_m": (64, 128), "stages": (4,), "group_m": (*default["tma"]["group_m"][1:], 32)}}
    (options,) = re.findall(r"`(--axis [^`]*)`", README)
    changed = choose_space("default", (), options.replace("--axis ", "").split()).axes
    assert {axes["cta_m"] for axes in changed.values()} == {(64, 128)}
    assert (changed["tma"]["stages"], changed["pointer"]["stages"]) == ((4,), default["pointer"]["stages"])
    assert all(changed[family]["group_m"][-1] == 32 and 3 not in changed[family]["split_k"] for family in ("pointer", "tma"))


def test_public_names_resolve() -> None:
    import tuner

    for name in tuner.__all__:
        assert getattr(tuner, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tuner.nothing  # noqa: B018
