"""Which files of the compiler's cache does one search still need? A candidate takes some 1.5 MB there, and only those that wait for their
turn and the leaders are launched again."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path


class KernelCache:
    """Folders of the cache by the rows that they were compiled for. What several rows share, such as the sum of parts, stays to the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._of_row: dict[int, tuple[str, ...]] = {}
        self._uses: Counter[str] = Counter()

    def hold(self, row: int, names: Sequence[str]) -> None:
        self._of_row[row] = tuple(names)
        self._uses.update(names)

    def keep(self, rows: Collection[int]) -> None:
        """Remove what was compiled for other rows. One that is launched all the same is compiled again."""
        for row in [row for row in self._of_row if row not in rows]:
            for name in self._of_row.pop(row):
                if self._uses[name] == 1:
                    shutil.rmtree(self._folder / name, ignore_errors=True)

    def clear(self) -> None:
        """Remove all of it, once the search is over."""
        self.keep(())
        for name in self._uses:
            shutil.rmtree(self._folder / name, ignore_errors=True)
