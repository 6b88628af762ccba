"""Products of numbers that people and problems give, which no 64 bits need hold."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MOST = 2**58  # far over what any chip has, and small enough that a few of them still add up within 64 bits


def product(*factors: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """Exact up to `MOST`, and that where it is more: it may be too much, but never wraps to what is little enough. Factors count from 0."""
    exact, size = np.asarray(1, dtype=np.int64), np.asarray(1.0)
    with np.errstate(over="ignore"):
        for factor in factors:
            whole = np.asarray(min(factor, MOST) if isinstance(factor, int) else factor)
            exact, size = np.asarray(exact * whole), np.asarray(size * whole)
    return np.where(size < MOST, exact, MOST)
