"""Runs an exported Python module on the GPU as production would: in this process, with nothing but torch and Triton, on outputs full of
NaN.

    tuner export --to python --gpu h200 -o /tmp/winners.py
    cd /tmp && python -P /path/to/benchmarks/check_export.py winners.py 4096x4096x4096 64x8192x8192

Each shape is run as given and with M = 1, 7 and 100, ten times, and compared with a float32 product.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import torch

RUNS = 10
OTHER_ROWS = (1, 7, 100)
BOUND = 2.0**-8  # one rounding to bf16


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("exported", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["exported"] = module
    spec.loader.exec_module(module)
    return module


def check(module: ModuleType, m: int, n: int, k: int) -> tuple[bool, str]:
    x = torch.randn(m, k, device="cuda", dtype=torch.float32).bfloat16()
    w = torch.randn(n, k, device="cuda", dtype=torch.float32).bfloat16()
    reference = x.float() @ w.float().t()
    out, first, worst = torch.empty(m, n, device="cuda", dtype=torch.bfloat16), None, 0.0
    for _ in range(RUNS):
        out.fill_(float("nan"))
        module.matmul(x, w.t(), out=out)
        error = float((out.float() - reference).norm() / reference.norm())
        same = first is None or torch.equal(first, out)
        first = out.clone()
        worst = max(worst, error) if error == error else float("inf")
        if not same or worst > BOUND:
            return False, f"{m}x{n}x{k}: error {worst:.3g}, same bits {same}"
    rule, schedule = module.plan(x, w.t(), out)
    return True, f"{m}x{n}x{k}: right {RUNS} times, error {worst:.3g} ({rule}: {schedule})"


def main() -> int:
    torch.backends.cuda.matmul.allow_tf32 = False
    path, *shapes = sys.argv[1:]
    assert not any((Path(entry) / "tuner").is_dir() for entry in sys.path if entry), "the repository is on the path"
    module, wrong = load(path), 0
    print(next(line for line in (module.__doc__ or "").splitlines() if line.startswith("Written by tuner")))
    for shape in shapes:
        m, n, k = map(int, shape.split("x"))
        for rows in (m, *OTHER_ROWS):
            right, line = check(module, rows, n, k)
            wrong += not right
            print("ok   " if right else "WRONG", line, flush=True)
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
