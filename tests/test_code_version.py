"""Every record and every result names the code that it was taken with, in a checkout and without its history."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tuner.code_version import version_of

ROOT = Path(__file__).parent.parent


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    return subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with the files that decide, as they are here."""
    folder = tmp_path / "checkout"
    (folder / "tuner").mkdir(parents=True)
    for name in (".gitattributes", "tuner/commit.txt"):
        shutil.copy(ROOT / name, folder / name)
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        git(folder, *arguments)
    return folder


def archived(checkout: Path, commit: str) -> Path:
    git(checkout, "archive", "-o", str(checkout.parent / "a.tar"), commit)
    with tarfile.open(checkout.parent / "a.tar") as archive:
        archive.extractall(checkout.parent / commit[:7], filter="data")
    return checkout.parent / commit[:7]


def test_a_checkout_names_its_commit_and_whether_it_is_clean(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")[:7]
    assert version_of(checkout).endswith(f"+{commit}")
    (checkout / "new").touch()
    assert version_of(checkout).endswith(f"+{commit}.dirty")


def test_an_archive_names_the_commit_that_it_was_made_of(checkout: Path) -> None:
    """Of an earlier commit, and unpacked where a newer checkout stands beside it."""
    first = git(checkout, "rev-parse", "HEAD")
    git(checkout, "commit", "-q", "--allow-empty", "-m", "second")
    second = git(checkout, "rev-parse", "HEAD")
    for commit in (first, second):
        assert version_of(archived(checkout, commit)).endswith(f"+{commit[:7]}")


@pytest.mark.parametrize("text", ["", "$Format:%H$", "HEAD", "0" * 39, "z" * 40, "0" * 40 + "\n; rm"])
def test_what_is_no_commit_is_not_taken_for_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "tuner").mkdir()
    (tmp_path / "tuner/commit.txt").write_text(text)
    assert "+" not in version_of(tmp_path)


def test_without_git_the_version_alone(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "+" not in version_of(checkout)
