"""Multiplies with an exported module in a process that knows nothing of this repository, and prints as JSON what each case came to.

    python -I run_exported.py MODULE.py float16|bfloat16

Factors are -1, 0 and 1, so that every sum is a whole number that both types hold exactly: answers are compared for equality.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # what torch's deterministic mode, set below, asks of the reference product

import torch

spec = importlib.util.spec_from_file_location("exported", Path(sys.argv[1]))
exported = importlib.util.module_from_spec(spec)
sys.modules["exported"] = exported
spec.loader.exec_module(exported)

torch.manual_seed(0)
torch.use_deterministic_algorithms(True)  # torch.empty, of which workspaces are made, then gives NaNs
assert torch.empty(3).isnan().all()
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = getattr(torch, sys.argv[2])
N, K = 96, 80


def draw(rows, columns, dtype=DTYPE):
    return torch.randint(-1, 2, (rows, columns), device=DEVICE).to(dtype)


def matrix(rows, columns, transposed):
    return draw(columns, rows).t() if transposed else draw(rows, columns)


def nans(rows, columns, dtype=DTYPE):
    return torch.full((rows, columns), float("nan"), dtype=dtype, device=DEVICE)


def outcome(a, b, out=None):
    """Whether the answer is right, and by which rule it was found."""
    given = out is not None
    c = exported.matmul(a, b, out) if given else exported.matmul(a, b)
    right = torch.equal(c.float(), a.float() @ b.float()) and (not given or c is out)
    found = exported.plan(a, b, out if given and out.stride(1) == 1 else c) if a.shape[1] and c.numel() and c.stride(1) == 1 else ("", None)
    return [right, found[0]]


def error_of(*arguments):
    try:
        exported.matmul(*arguments)
    except ValueError as error:
        return str(error)
    return ""


results = {}
for m in (1, 7, 16, 64, 100, 300):
    results[f"M={m}"] = outcome(draw(m, K), draw(N, K).t(), nans(m, N))
for layout in ("nn", "nt", "tn", "tt"):
    results[layout] = outcome(matrix(33, K, layout[0] == "t"), matrix(K, N, layout[1] == "t"), nans(33, N))

wide = draw(64, 2 * K + 3)
results["every second column of A"] = outcome(wide[:, 1 : 2 * K : 2], draw(N, K).t(), nans(64, N))
results["A with rows 163 elements apart"] = outcome(wide[:, :K], draw(N, K).t(), nans(64, N))
results["A one element off"] = outcome(draw(1, 64 * K + 1)[0, 1:].view(64, K), draw(N, K).t(), nans(64, N))
results["A a row that is repeated"] = outcome(draw(1, K).expand(64, K), draw(N, K).t(), nans(64, N))
results["B a column that is repeated"] = outcome(draw(64, K), draw(K, 1).expand(K, N), nans(64, N))
results["one element for all of A"] = outcome(draw(1, 1).expand(64, K), draw(N, K).t(), nans(64, N))
one_row = draw(1, 2 * K)
results["one row of A, strides (7, 1)"] = outcome(one_row.as_strided((1, K), (7, 1)), draw(N, K).t(), nans(1, N))
results["one row of A, every second element"] = outcome(one_row.as_strided((1, K), (1, 2)), draw(N, K).t(), nans(1, N))
results["one row of out, stride 0"] = outcome(draw(1, K), draw(N, K).t(), nans(1, N).as_strided((1, N), (0, 1)))
results["out by columns"] = outcome(draw(64, K), draw(N, K).t(), nans(N, 64).t())
results["out float32"] = outcome(draw(64, K), draw(N, K).t(), nans(64, N, torch.float32))
padded = nans(64, N + 10)
results["out inside a wider buffer"] = outcome(draw(64, K), draw(N, K).t(), padded[:, :N])
results["what is beside it stays"] = [bool(padded[:, N:].isnan().all()), ""]
results["without out"] = outcome(draw(64, K), draw(N, K).t())
results["another N and K"] = outcome(draw(20, 50), draw(30, 50).t(), nans(20, 30))
results["one column"] = outcome(draw(5, K), draw(K, 1), nans(5, 1))
for name, (m, n, k) in {"M=0": (0, N, K), "N=0": (64, 0, K), "K=0": (64, N, 0)}.items():
    results[name] = outcome(draw(m, k), draw(k, n), nans(m, n))

if DEVICE == "cuda":
    a, b, out = draw(16, K), draw(N, K).t(), nans(16, N)
    exported.matmul(a, b, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        exported.matmul(a, b, out)
    out.fill_(float("nan"))
    graph.replay()
    results["replayed from a CUDA graph"] = [torch.equal(out.float(), a.float() @ b.float()), ""]

wide = nans(64, 2 * N)
results["A and out side by side in one buffer"] = outcome(wide[:, :K].copy_(draw(64, K)), draw(N, K).t(), wide[:, N:])
results["A in the first rows of a buffer, out in the next"] = outcome(wide[:32, :K].copy_(draw(32, K)), draw(N, K).t(), wide[32:, :N][:32])

a, b, whole, ones = draw(64, K), draw(N, K).t(), nans(80, 200), nans(N, N).fill_(1)
square, long = draw(N, N), draw(65, N)
shared = {
    "a row that is repeated": (a, b, nans(1, N).expand(64, N)),
    "a column that is repeated": (a, b, nans(64, 1).expand(64, N)),
    "one element for all of it": (a, b, nans(1, 1).expand(64, N)),
    "rows that begin within the last": (a, b, nans(1, 64 * N).as_strided((64, N), (N - 1, 1))),
    "columns that begin within the last": (a, b, nans(1, 64 * N).as_strided((64, N), (1, 63))),
    "A itself": (square, ones, square),
    "B itself": (ones, square, square),
    "A transposed": (square, ones, square.t()),
    "the rows of A but for the first": (long[:64], ones, long[1:]),
    "columns of A": (whole[:64, :K], b, whole[:64, K - 1 : K - 1 + N]),
    "part of a row of B": (a[:1], whole[:K, :N], whole[3:4, :N]),
}

errors = {name: error_of(*arguments) for name, arguments in shared.items()} | {
    "inner extents": error_of(draw(4, 5), draw(6, 7)),
    "out": error_of(draw(4, 5), draw(5, 7), nans(4, 6)),
    "types": error_of(draw(4, 5), draw(5, 7, torch.float32)),
}
repository = sorted({"tuner", "search_spaces", "cost_models", "db"} & set(sys.modules))
print(json.dumps({"results": results, "errors": errors, "repository": repository}))
