"""Products that the family `gemv` must get right. Run as a program, it checks them all on Triton's interpreter."""

from __future__ import annotations

import torch
from kernel_cases import Case, interpret

LAYOUTS = ("nn", "nt", "tn", "tt")
# The threads of one warp share 32 columns along N, 8 elements each; or go along K together, 8 elements each.
TILES = {"n": "gemv {rows}x32x8 w1 s1", "t": "gemv {rows}x4x256 w1 s1"}


def tile(layout: str, rows: int) -> str:
    return TILES[layout[1]].format(rows=rows)


def gemv_cases() -> list[Case]:
    """Interpreted, a step of a few elements takes a millisecond and more; so they are small."""
    cases = [
        Case(schedule=tile(layout, 2), m=m, n=n, k=k, layout=layout)
        for layout in LAYOUTS
        for m, n, k in (((1, 32, 16), (3, 37, 19)) if layout[1] == "n" else ((1, 4, 512), (3, 5, 267)))
    ]
    cases += [Case(schedule=tile("nt", rows), m=m, n=3, k=40) for m, rows in ((2, 2), (3, 4), (5, 8), (8, 8), (16, 8), (16, 16))]
    cases += [
        Case(schedule=f"{tile(layout, 2)} k{splits} r1", m=3, n=n, k=k, layout=layout, out_dtype=out)
        for layout, n, splits, k, out in (
            ("nn", 40, 2, 32, torch.float16),
            ("nn", 40, 3, 20, torch.float32),
            ("nt", 6, 2, 1024, torch.float32),
            ("nt", 6, 3, 520, torch.float16),
            ("tt", 6, 4, 520, torch.float16),  # the last split is empty
        )
    ]
    cases += [
        Case(schedule=f"{tile('nt', 1)} k2 r1", m=2, n=5, k=0),
        Case(schedule=f"{tile('nt', 2)} k3 r2", m=3, n=6, k=512),
        Case(schedule=tile("nn", 2), m=2, n=5, k=0, layout="nn"),
        Case(schedule=tile("nt", 4), m=3, n=1, k=40),
        Case(schedule=tile("nt", 4), m=3, n=9, k=1),
        Case(schedule=tile("nt", 1), m=1, n=1, k=20, layout="nn"),
        Case(schedule=tile("nt", 2), m=2, n=6, k=264, gap_a=1, gap_b=1, gap_c=1),
        Case(schedule=tile("nn", 2), m=2, n=40, k=16, layout="nn", gap_a=8, gap_b=4, gap_c=3),
        Case(schedule=f"{tile('nt', 2)} k2 r1", m=3, n=6, k=512, offset=1, gap_c=3),
        Case(schedule=tile("nn", 2), m=3, n=64, k=16, layout="nn", offset=1),
        Case(schedule=tile("nt", 2), m=3, n=6, k=264, step=2),
        Case(schedule="gemv 2x512x2 w1 s1", m=2, n=600, k=5, layout="nn"),  # a thread has several vectors of a row
        Case(schedule="gemv 2x1x512 w1 s1", m=2, n=3, k=600),
    ]
    return cases


if __name__ == "__main__":
    interpret(gemv_cases())
