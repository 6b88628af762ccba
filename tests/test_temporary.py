"""Temporary files: one folder with its owner's name, which goes with it; what the killed left goes at the next start, and nothing else."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from search_spaces.errors import MachineFault
from tuner.temporary import LOCK, NAME, process_start, remove_abandoned, temporary_folder

GONE = 2**22 + 1  # over the largest number that Linux gives to a process


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def named(like: str, *, pid: int, start: int) -> str:
    """The name of a folder of another process on this host."""
    host = NAME.match(like)[3]  # type: ignore[index]
    return f"tuner-{pid}-{start}-{host}-x"


def make(base: Path, name: str) -> Path:
    (base / name).mkdir()
    (base / name / "tmpabc.ptx").write_text("ptx")
    (base / name / LOCK).touch()
    return base / name


@pytest.fixture
def own_name(base: Path) -> str:
    with temporary_folder() as folder:
        return folder.name


def test_the_name_says_whose_it_is(base: Path) -> None:
    with temporary_folder() as folder:
        assert folder.parent == base
        assert folder.name.startswith(f"tuner-{os.getpid()}-{process_start(os.getpid())}-")
        (folder / "tmp").mkdir()
        (folder / "tmp" / "x.ptx").touch()
    assert list(base.iterdir()) == []


def test_it_goes_whatever_ends_the_block(base: Path) -> None:
    with pytest.raises(KeyboardInterrupt), temporary_folder():
        raise KeyboardInterrupt
    assert list(base.iterdir()) == []


@pytest.mark.parametrize("pid", [GONE, os.getpid()], ids=["the process is gone", "its number is another's by now"])
def test_what_the_dead_left_is_removed(base: Path, own_name: str, pid: int) -> None:
    make(base, named(own_name, pid=pid, start=5))
    with temporary_folder() as folder:
        assert list(base.iterdir()) == [folder]


def test_one_that_died_before_it_held_anything_is_removed(base: Path, own_name: str) -> None:
    (make(base, named(own_name, pid=GONE, start=5)) / LOCK).unlink()
    remove_abandoned(base)
    assert list(base.iterdir()) == []


def test_what_a_living_process_uses_stays(base: Path) -> None:
    with temporary_folder() as folder:
        remove_abandoned(base)
        assert list(base.iterdir()) == [folder]


def test_what_is_locked_by_an_owner_of_other_process_numbers_stays(base: Path, own_name: str) -> None:
    folder = make(base, named(own_name, pid=GONE, start=5))
    with (folder / LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove_abandoned(base)
        assert list(base.iterdir()) == [folder]
    remove_abandoned(base)
    assert list(base.iterdir()) == []


@pytest.mark.parametrize(
    "name", [f"tuner-{GONE}-5-00000000-x", "tuner-gpu-0.lock", "tuner-abcd1234", f"tuner-{GONE}-x", f"xtuner-{GONE}-5-00000000-x"]
)
def test_folders_of_other_hosts_and_of_other_names_stay(base: Path, name: str) -> None:
    folder = make(base, name)
    remove_abandoned(base)
    assert list(base.iterdir()) == [folder]


def test_links_are_not_followed(base: Path, own_name: str, tmp_path: Path) -> None:
    """In a folder that all may write to, a link of such a name may lead anywhere; so may one inside."""
    precious = tmp_path / "precious"
    make(tmp_path, "precious")
    (base / named(own_name, pid=GONE, start=5)).symlink_to(precious)
    (make(base, named(own_name, pid=GONE, start=6)) / "out").symlink_to(precious)
    lock = make(base, named(own_name, pid=GONE, start=7)) / LOCK
    lock.unlink()
    lock.symlink_to(precious / "tmpabc.ptx")
    remove_abandoned(base)
    assert sorted(file.name for file in precious.iterdir()) == [LOCK, "tmpabc.ptx"]
    assert sorted(file.name for file in base.iterdir()) == [named(own_name, pid=GONE, start=5), named(own_name, pid=GONE, start=7)]


def test_a_process_is_told_from_a_later_one_with_its_number() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert process_start(process.pid) >= process_start(os.getpid()) > 0
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process_start(process.pid) == 0  # dead, though nobody has collected it
    assert process_start(GONE) == 0


def test_no_place_for_temporary_files_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with (
        pytest.raises(MachineFault, match="no folder for temporary files can be made: No such file or directory; set TMPDIR"),
        temporary_folder(),
    ):
        pass
