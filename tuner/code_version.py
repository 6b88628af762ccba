"""Which code this is: the package's version with the commit that it was taken from, for every record and every benchmark's header.

An archive of a commit (`git archive`) knows its commit, because git writes it into `commit.txt` on the way; a checkout asks git, and says
`dirty` where its files differ from the commit. So code that is measured on a machine without its history still says what it is.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHORT = 7  # characters of a commit's id


@cache
def code_version() -> str:
    """`0.1.0+1a2b3c4`, `0.1.0+1a2b3c4.dirty`, or the version alone where nothing knows the commit."""
    return version_of(ROOT)


def version_of(root: Path) -> str:
    version = _installed() or _declared(root / "pyproject.toml") or "unknown"
    commit = _archived(root / "tuner" / "commit.txt") or _checked_out(root)
    return f"{version}+{commit}" if commit else version


def _installed() -> str:
    try:
        return importlib.metadata.version("tuner")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _declared(file: Path) -> str:
    """Where the tree is run without being installed."""
    try:
        return str(tomllib.loads(file.read_text(encoding="utf-8"))["project"]["version"])
    except (OSError, ValueError, KeyError):
        return ""


def _archived(file: Path) -> str:
    """The commit that `git archive` wrote; in a checkout there is only the place for it."""
    try:
        text = file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
    return text[:SHORT] if re.fullmatch(r"[0-9a-f]{40,64}", text) else ""


def _checked_out(root: Path) -> str:
    if not (root / ".git").exists():
        return ""
    commit = _git(root, "rev-parse", f"--short={SHORT}", "HEAD")
    return f"{commit}.dirty" if commit and _git(root, "status", "--porcelain") else commit


def _git(root: Path, *arguments: str) -> str:
    try:
        ran = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout.strip() if ran.returncode == 0 else ""
