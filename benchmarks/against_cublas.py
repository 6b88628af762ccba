"""Searches a list of shapes on the GPU that is present and keeps how the winners stand against cuBLAS, with the environment they were
measured in.

    python benchmarks/against_cublas.py --gpu h200 --db tuning.db --output benchmarks/results/h200-bf16-nt

writes OUTPUT.csv and OUTPUT.md. Each search is the command line's own, in a process of its own.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SHAPES = (
    "4096x4096x4096",
    "64x8192x8192",
    "16x6144x4096",
    "512x4096x14336",
    "1024x1024x16384",
    "8192x1024x8192",
    "64x128256x4096",
)
COLUMNS = ("shape", "schedule", "median_us", "library_us", "ratio", "ratio_low", "ratio_high", "tied", "measured", "seconds")


def search(shape: str, given: argparse.Namespace) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "tuner.cli",
        "search",
        "--shape",
        shape,
        "--gpu",
        given.gpu,
        "--dtype",
        given.dtype,
        "--layout",
        given.layout,
    ]
    command += ["--trials", str(given.trials), "--budget", given.budget, "--db", str(given.db), "--top-k", "100", "--json"]
    begin = time.monotonic()
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - begin
    print(ran.stderr, file=sys.stderr, end="")
    if ran.returncode:
        return {"shape": shape, "schedule": f"exit code {ran.returncode}", "seconds": round(seconds, 1)}
    found = json.loads(ran.stdout)
    winner = next(f for f in found["finalists"] if f["winner"])
    statuses = [candidate["status"] for candidate in found["candidates"]]
    row = {name: winner[name] for name in ("schedule", "median_us", "library_us", "ratio", "ratio_low", "ratio_high")}
    return {
        "shape": shape,
        **row,
        "tied": sum(f["tied"] for f in found["finalists"]),
        "measured": statuses.count("ok"),
        "seconds": round(seconds, 1),
    }


def environment(given: argparse.Namespace) -> str:
    best = [sys.executable, "-m", "tuner.cli", "best", "--shape", given.shapes[0], "--gpu", given.gpu, "--dtype", given.dtype]
    ran = subprocess.run([*best, "--layout", given.layout, "--db", str(given.db), "--json"], capture_output=True, text=True, check=True)
    return ", ".join(
        f"{name} {value}" for name, value in json.loads(ran.stdout)["environment"].items() if value is not None and name != "device_uuid"
    )


def markdown(rows: list[dict[str, Any]], given: argparse.Namespace, mean: float, where: str) -> str:
    lines = [
        f"{given.dtype}, layout {given.layout}, at most {given.trials} candidates and {given.budget} a shape. Ratio: cuBLAS's time over",
        "the winner's, median of paired rounds, with its 95 % interval. Seconds: wall clock of the whole command, nothing compiled before.",
        "",
        "| shape | schedule | us | cuBLAS us | ratio | measured | seconds |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        if "ratio" in row:
            ratio = f"{row['ratio']:.3f} [{row['ratio_low']:.3f}, {row['ratio_high']:.3f}]"
            cells = (f"{row['median_us']:.2f}", f"{row['library_us']:.2f}", ratio, row["measured"], row["seconds"])
            lines.append(f"| {row['shape']} | `{row['schedule']}` | " + " | ".join(map(str, cells)) + " |")
        else:
            lines.append(f"| {row['shape']} | {row['schedule']} | | | | | {row['seconds']} |")
    return "\n".join([*lines, "", f"Geometric mean of the ratios: {mean:.3f}", "", f"Environment: {where}", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--layout", default="nt")
    parser.add_argument("--trials", type=int, default=48)
    parser.add_argument("--budget", default="30s")
    parser.add_argument("--db", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--shapes", nargs="*", default=SHAPES)
    given = parser.parse_args()
    rows = [search(shape, given) for shape in given.shapes]
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan
    given.output.parent.mkdir(parents=True, exist_ok=True)
    with given.output.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    text = markdown(rows, given, mean, environment(given))
    given.output.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
