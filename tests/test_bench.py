"""A suite against the library with a fake measuring process: every product a row, what is known not measured again, files whole at any
time."""

from __future__ import annotations

import csv
import errno
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from cost_models.roofline import Roofline
from db.records import Environment, Finalist
from db.store import open_store
from search_spaces.errors import MachineFault, UserError
from search_spaces.gpu_files import load_gpu
from search_spaces.hardware import Hardware
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule
from tuner import bench, benching
from tuner.bench import Benchmark, BenchRow, Stand
from tuner.bench_report import bench_csv, bench_markdown, bench_text, summary
from tuner.benching import only
from tuner.cli import app
from tuner.environment import DeviceInfo
from tuner.measuring import MeasureSettings, MeasuringProcess, Standby
from tuner.request import Request
from tuner.searching import SearchWish
from tuner.suite_files import SuiteRow, parse_suite
from tuner.workbench import open_workshop

Rows = Sequence[BenchRow]
FAKE = (sys.executable, str(Path(__file__).parent / "fake_measure_process.py"))
SETTINGS = MeasureSettings(command=FAKE, candidate_seconds=20.0)
HERE = Environment(
    gpu="h200-sxm-141gb", triton="3.9.0", python="3.11", code_version="0", device_name="NVIDIA H200", sms=132, device_memory_bytes=1
)
DEVICE = DeviceInfo(
    name="NVIDIA H200",
    uuid="GPU-0",
    sms=132,
    memory_bytes=150_754_820_096,
    compute_capability=(9, 0),
    driver="570",
    cuda="12.8",
    sm_clock_mhz=1980.0,
    memory_clock_mhz=3201.0,
    power_limit_w=700.0,
    others=0,
    busy_percent=0,
)
SPACE = "pointer: {cta_m: 64, cta_n: [32, 64], cta_k: 32, warps: 4, stages: 2, group_m: 1}"
WRONG = SPACE.replace("group_m: 1", "group_m: 4")  # the fake gives a wrong answer for it
SUITE = """\
suite,name,M,N,K,dtype
small,first,64,128,256,bf16
small,eighth,8,8,8,fp8
other,second,128,64,256,bf16
other,first again,64,128,256,bf16
"""


def benchmark(folder: Path, text: str = SUITE, *, space: str = SPACE, place: Environment = HERE, **request: object) -> list[Rows]:
    """Runs the suite with the database of the folder; gives what was written, time by time."""
    hardware, file = load_gpu("h200"), folder / "space.yaml"
    file.write_text(space)

    def wish(problem: Problem) -> SearchWish:
        chosen = {"space": str(file), "families": (), "model": "hierarchy", "strategy": "ranked", "trials": 4, "budget": "", "seed": 0}
        others = {"measure": True, "measure_anyway": False, "location": None, "regret": "0"}
        return SearchWish(problem=problem, hardware=hardware, **{**chosen, **others, **request})  # type: ignore[arg-type]

    written: list[Rows] = []
    with open_workshop(SETTINGS) as workshop, open_store(folder / "t.db") as store:
        work = {"hardware": hardware, "environment": place, "store": store, "workshop": workshop}
        rows = parse_suite("s", text).rows
        Benchmark(rows=rows, wish=wish, **work, say=lambda _: None, written=written.append).run()  # type: ignore[arg-type]
    return written


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Rows]]:
    folder = tmp_path_factory.mktemp("bench")
    return folder, benchmark(folder)


@pytest.fixture
def later(first_run: tuple[Path, list[Rows]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Rows]:
    """The suite once more, with the first run's database; what would be searched now fails."""
    shutil.copy(first_run[0] / "t.db", tmp_path / "t.db")
    monkeypatch.setattr(Benchmark, "_searched", lambda self, problem, first, more: "it would be searched")
    monkeypatch.setitem(globals(), "open_workshop", nullcontext)
    return lambda **change: benchmark(tmp_path, **change)[-1]


def statuses(rows: Rows) -> list[str]:
    return [row.status for row in rows]


def test_each_product_is_searched_once(first_run: tuple[Path, list[Rows]]) -> None:
    written = first_run[1]
    assert [statuses(rows) for rows in written] == [
        ["skipped"],
        ["measured", "skipped", "measured"],  # the product that is named twice
        ["measured", "skipped", "measured", "measured"],
    ]
    first, eighth, second, _ = written[-1]
    assert eighth.reason == "no kernel family multiplies fp8; they take bf16, fp16"
    assert first.stand is not None
    assert second.stand is not None
    assert str(first.stand.schedule) == "pointer 64x64x32 w4 s2"
    assert (first.stand.measured, first.stand.finalist.ratio) == (2, pytest.approx(1.1))


def test_the_same_command_again_takes_what_is_known(first_run: tuple[Path, list[Rows]], later: Callable[..., Rows]) -> None:
    rows = later()
    assert statuses(rows) == ["known", "skipped", "known", "known"]
    assert [row.stand and replace(row.stand, known=False) for row in rows] == [row.stand for row in first_run[1][-1]]


@pytest.mark.parametrize(
    "change",
    [{"place": replace(HERE, driver="another")}, {"seed": 1}, {"space": SPACE.replace("[32, 64]", "64")}, {"anew": True}],
    ids=["another driver", "another search", "another space", "--again"],
)
def test_what_was_measured_otherwise_is_not_known(later: Callable[..., Rows], change: dict[str, object]) -> None:
    assert statuses(later(**change)) == ["failed", "skipped", "failed", "failed"]


def test_a_kernel_that_has_changed_is_measured_again(later: Callable[..., Rows], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "kernel_hash", lambda family: "of another source")
    assert statuses(later()) == ["failed", "skipped", "failed", "failed"]


def test_again_times_the_candidates_too(first_run: tuple[Path, list[Rows]], tmp_path: Path) -> None:
    shutil.copy(first_run[0] / "t.db", tmp_path / "t.db")
    (row,) = benchmark(tmp_path, "M,N,K\n64,128,256\n", anew=True)[-1]
    assert row.stand is not None
    assert row.stand.measured == 2


def test_a_product_that_fails_is_a_row_and_not_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranked = bench.rank

    def rank(problem: Problem, *given: object) -> object:
        if problem.n == 128:
            raise RuntimeError("out of\npaper")
        return ranked(problem, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(bench, "rank", rank)
    rows = benchmark(tmp_path, "M,N,K\n64,128,256\n1000000,1000000,64\n128,64,256\n")[-1]
    assert statuses(rows) == ["failed", "failed", "measured"]
    assert rows[0].reason == "RuntimeError: out of"
    assert rows[1].reason.startswith("the matrices of 1000000x1000000x64 bf16 take 2000256000000 B, h200-sxm-141gb has")


def test_a_search_without_a_right_answer_says_what_it_met(tmp_path: Path) -> None:
    (row,) = benchmark(tmp_path, "M,N,K\n512,128,256\n", space=WRONG)[-1]
    assert (row.status, row.reason) == ("failed", "no schedule could be timed: 2 wrong_answer")


def test_the_next_products_process_stands_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One waits while the first product is measured, and takes the second; none is started for after the last."""
    started: list[Standby] = []

    class Counted(Standby):
        def __init__(self, settings: MeasureSettings, cache_dir: Path) -> None:
            super().__init__(settings, cache_dir)
            started.append(self)

    monkeypatch.setattr("tuner.workbench.Standby", Counted)
    assert statuses(benchmark(tmp_path)[-1]) == ["measured", "skipped", "measured", "measured"]
    assert len(started) == 1


def test_where_the_machine_lets_nothing_go_on_the_suite_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next product would fare no better; what is done is written."""

    def rank(problem: Problem, *given: object) -> object:
        if problem.m == 128:
            raise OSError(errno.ENOSPC, "No space left on device")
        return ranked(problem, *given)  # type: ignore[arg-type]

    ranked = bench.rank
    monkeypatch.setattr(bench, "rank", rank)
    with pytest.raises(OSError, match="No space left"):
        benchmark(tmp_path)


def test_a_product_that_the_machine_failed_is_said_and_the_suite_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its leftovers have a winner, and the command ends with the sentence and with 3."""
    searched = bench.search

    def search(request: Request, *given: object, **named: object) -> object:
        result = searched(request, *given, **named)  # type: ignore[arg-type]
        return replace(result, fault="2 of 4 candidates failed") if request.problem.m == 64 else result

    monkeypatch.setattr(bench, "search", search)
    monkeypatch.setattr(benching, "device_present", lambda: DEVICE)
    monkeypatch.setattr(benching, "open_workshop", lambda: open_workshop(SETTINGS))
    suite, space = tmp_path / "mine.csv", tmp_path / "space.yaml"
    suite.write_text(SUITE)
    space.write_text(SPACE)
    ran = CliRunner().invoke(app, ["bench", "--gpu", "h200", "--suite", str(suite), "--space", str(space), "--db", str(tmp_path / "t.db")])
    assert isinstance(ran.exception, MachineFault)
    assert str(ran.exception) == "64x128x256 bf16 nt: 2 of 4 candidates failed"
    assert "geometric mean of 3 ratios" in ran.stdout


GOOD = Schedule(family="pointer", cta_m=64, cta_n=64, cta_k=32, warps=4, stages=3, group_m=1)


def test_the_start_of_the_suite_is_not_in_the_first_products_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others' processes get ready beside the product before. A search itself waits for its process where it first measures."""
    happened: list[str] = []
    wait, search = MeasuringProcess.wait_until_ready, bench.search

    def waited(process: MeasuringProcess) -> None:
        wait(process)
        happened.append("ready")

    def searched(request: Request, *given: object, **named: object) -> object:
        happened.append(request.problem.shape)
        return search(request, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(MeasuringProcess, "wait_until_ready", waited)
    monkeypatch.setattr(bench, "search", searched)
    benchmark(tmp_path)
    assert happened == ["ready", "64x128x256", "ready", "128x64x256", "ready"]


def test_a_process_that_stood_by_measures(h200: Hardware, tmp_path: Path) -> None:
    standby = Standby(SETTINGS, tmp_path)
    with MeasuringProcess(Problem(m=64, n=64, k=64), h200, SETTINGS, cache_dir=tmp_path, standby=standby) as process:
        assert process.measure(GOOD, None).status == "ok"
    standby.close()  # it is the other's by now
    assert ((tmp_path / "standbys").read_text(), (tmp_path / "lives").read_text()) == ("x", "x")


def test_one_that_died_while_it_stood_by_is_replaced(h200: Hardware, tmp_path: Path) -> None:
    standby = Standby(MeasureSettings(command=(sys.executable, "-c", "raise SystemExit(3)")), tmp_path)
    with MeasuringProcess(Problem(m=64, n=64, k=64), h200, SETTINGS, cache_dir=tmp_path, standby=standby) as process:
        assert process.measure(GOOD, None).status == "ok"
    assert not (tmp_path / "standbys").exists()


def test_one_that_nobody_needs_ends(tmp_path: Path) -> None:
    """As the real one does when its input ends; it has imported torch by then, and has not looked for a GPU."""
    command = [sys.executable, "-m", "tuner.measure_start", "--wait"]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, env=os.environ, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def stand(ratio: float, median_us: float, *, known: bool = False) -> Stand:
    """2 us of the roof's 4."""
    finalist = Finalist(
        trial_id=1,
        rank=1,
        ratio=ratio,
        ratio_low=ratio - 0.01,
        ratio_high=ratio + 0.01,
        median_us=median_us,
        library_us=ratio * median_us,
        tied=True,
        winner=True,
    )
    roof = Roofline(flops=2e9, dram_bytes=8e6, peak_flops=1e15, bytes_per_second=4e12)
    return Stand(schedule=GOOD, finalist=finalist, tied=2, measured=16, seconds=5.04, roof=roof, known=known)


def row(suite: str, m: int, n: int, k: int) -> SuiteRow:
    problem = Problem(m=m, n=n, k=k)
    kind = {"dtype": "bf16", "out_dtype": "bf16", "layout": "nt"}
    return SuiteRow(suite=suite, name="", m=m, n=n, k=k, source="a list, and more", problem=problem, **kind)


ROWS = (
    BenchRow(row=row("a", 1000, 1000, 1000), stand=stand(1.21, 4.0)),
    BenchRow(row=row("a", 1, 1000, 1000), stand=stand(1.0, 4.0, known=True)),
    BenchRow(row=row("b", 2, 1000, 1000), stand=stand(0.98, 2.0)),
    BenchRow(row=row("b", 3, 1000, 1000), reason="it broke"),
    BenchRow(row=replace(row("b", 0, 1, 1), problem=None, dtype="fp8"), reason="too small"),
    BenchRow(row=replace(row("b", 0, 1, 2), problem=None, dtype="fp8"), reason="too small"),
)


def test_figures_of_a_row() -> None:
    first, second, third, failed, skipped, _ = csv.DictReader(io.StringIO(bench_csv(ROWS)))
    assert (first["status"], second["status"], third["status"], failed["status"]) == ("measured", "known", "measured", "failed")
    assert (first["tflops"], first["gb_per_second"]) == ("500.0", "1500.0")  # 2e9 FLOP and 6e6 B in 4 us
    assert (first["roofline_us"], first["roofline_percent"], first["limiter"]) == ("2.0", "50.0", "compute")
    assert (first["ratio"], first["ratio_low"], first["ratio_high"], first["library_us"]) == ("1.21", "1.2", "1.22", "4.84")
    assert (first["schedule"], first["tied"], first["measured"], first["seconds"]) == ("pointer 64x64x32 w4 s3", "2", "16", "5.0")
    assert (first["dtype_in"], first["layout"], first["lda"], first["alignment"], first["source"]) == (
        *("bf16", "nt", "1000", "16"),
        "a list, and more",
    )
    assert (failed["reason"], failed["lda"], failed["ratio"]) == ("it broke", "1000", "")
    assert (skipped["M"], skipped["dtype_in"], skipped["reason"], skipped["lda"]) == ("0", "fp8", "too small", "")


def test_the_summary() -> None:
    found = summary(ROWS)
    assert (found["products"], found["compared"]) == (6, 3)
    assert found["geometric_mean"] == pytest.approx((1.21 * 1.0 * 0.98) ** (1 / 3), abs=1e-4)
    assert found["under"] == {"ratio": 0.99, "count": 1}
    assert found["suites"] == {"a": 1.1, "b": 0.98}
    assert summary(ROWS[3:])["geometric_mean"] is None


def test_the_table(golden: Callable[[str, str], None]) -> None:
    golden("bench.md", bench_markdown(ROWS, HERE, "mine", "at most 48 schedules a product"))
    text = bench_text(ROWS, HERE)
    assert "geometric mean of 3 ratios: 1.058; 1 under 0.99, the lowest 0.980\nby suite: a 1.100 (2), b 0.980 (1)\n" in text
    assert "failed, it broke: 3x1000x1000\nskipped, too small: 0x1x1, 0x1x2\n" in text
    assert "no product was compared with cuBLAS" in bench_text(ROWS[3:], HERE)


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("+1+2", "'+1+2"),
        ("-2+3", "'-2+3"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\\x0d=1"),
        (" =1", "' =1"),
        ("\uff1d1", "'\uff1d1"),
        ("-5", "-5"),
        ("+1.5e3", "+1.5e3"),
        ("a=b", "a=b"),
        ("\x1b[2J", "\\x1b[2J"),
    ],
)
def test_a_csv_file_holds_no_formula(name: str, cell: str) -> None:
    """OWASP, CSV injection: what begins as a formula begins with an apostrophe instead."""
    rows = (replace(ROWS[0], row=replace(ROWS[0].row, name=name, suite=name, source=name)),)
    found = next(csv.DictReader(io.StringIO(bench_csv(rows), newline="")))
    assert (found["name"], found["suite"], found["source"]) == (cell,) * 3
    assert found["ratio"] == "1.21"


def test_a_markdown_cell_keeps_its_table() -> None:
    text = bench_markdown((replace(ROWS[0], row=replace(ROWS[0].row, suite="a|b\nc")),), HERE, "my\nsuite", "effort")
    line = next(line for line in text.splitlines() if "1000x1000x1000" in line)
    assert line.startswith("| a\\|b c | 1000x1000x1000 |")
    assert text.startswith("Suite my suite: effort.")


def test_what_is_over_the_roof_is_named() -> None:
    """1000x1000x1000 takes 2 us at the peak. 1x1000x1000 is memory-bound here, where a cache may help."""
    fast = BenchRow(row=row("a", 1000, 1000, 1000), stand=stand(1.5, 0.5))
    memory = replace(stand(1.1, 0.5), roof=Roofline(flops=2e6, dram_bytes=8e6, peak_flops=1e15, bytes_per_second=4e12))
    rows = (fast, BenchRow(row=row("a", 1, 1000, 1000), stand=memory))
    text = bench_text(rows, HERE)
    over = "over 100 % of the roofline, faster than the GPU's published peak: the time or the GPU's file is wrong: 1000x1000x1000 (400 %)\n"
    assert over in text
    assert summary(rows)["compared"] == 2
    assert [found["ratio"] for found in csv.DictReader(io.StringIO(bench_csv(rows)))] == ["1.5", "1.1"]
    assert "over 100 %" not in bench_text(ROWS, HERE)


def test_only_some_of_the_products() -> None:
    rows = parse_suite("s", SUITE).rows
    assert [found.name for found in only(rows, "^small.*bf16")] == ["first"]
    assert only(rows, "") == rows
    with pytest.raises(UserError) as raised:
        only(rows, "x1024x")
    assert str(raised.value) == (
        "--only 'x1024x' leaves none of 4 products; it is looked for in lines such as 'small first 64x128x256 bf16 nt'"
    )


@pytest.mark.parametrize(
    ("present", "sentence"),
    [
        (None, "bench times schedules beside cuBLAS on h200-sxm-141gb, and no GPU is present; `tuner search` needs none"),
        (
            replace(DEVICE, name="NVIDIA Dream", compute_capability=(10, 0)),
            "the GPU present is NVIDIA Dream, which has no file here, not h200-sxm-141gb: nothing is measured; name the GPU that is"
            " present, or give --measure-anyway where it is of the same architecture",
        ),
    ],
)
def test_without_the_gpu_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch, present: DeviceInfo | None, sentence: str) -> None:
    monkeypatch.setattr(benching, "device_present", lambda: present)
    assert command("--suite", "seeds") == (2, "", sentence)


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (("--model", "luck"), "no cost model named 'luck'; known: hierarchy, roofline"),
        (("--strategy", "luck"), "no strategy named 'luck'"),
        (("--budget", "soon"), "budget 'soon' is no time above 0"),
        (("--suite", "lm"), "no suite named 'lm'; known: llm, seeds"),
        (("--output", "/dev/null/x"), "cannot make the folder /dev/null: "),
    ],
)
def test_mistakes_are_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: tuple[str, str], sentence: str
) -> None:
    monkeypatch.setattr(benching, "device_present", lambda: DEVICE)
    code, text, said = command("--db", str(tmp_path / "t.db"), *option)
    assert (code, text) == (2, "")
    assert said.startswith(sentence)
    assert not (tmp_path / "t.db").exists()


def command(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and the last line of stderr, or the sentence of a UserError, as `main` gives it."""
    ran = CliRunner().invoke(app, ["bench", "--gpu", "h200", *arguments])
    if isinstance(ran.exception, UserError):
        return 2, ran.stdout, str(ran.exception)
    return ran.exit_code, ran.stdout, (ran.stderr.splitlines() or [""])[-1]


def test_the_command_writes_both_files_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benching, "device_present", lambda: DEVICE)
    monkeypatch.setattr(benching, "open_workshop", lambda: open_workshop(SETTINGS))
    suite, space, output = tmp_path / "mine.csv", tmp_path / "space.yaml", tmp_path / "results" / "mine.v1"
    suite.write_text(SUITE.replace("\n", ",\n").replace("dtype,", "dtype,colour"))
    space.write_text(SPACE)
    given = ("--suite", str(suite), "--space", str(space), "--db", str(tmp_path / "t.db"), "--output", str(output))
    code, text, said = command(*given)
    assert code == 0
    assert "geometric mean of 3 ratios: 1.100; 0 under 0.99" in text
    assert said.startswith("[2/2] 128x64x256 bf16 nt: ")
    table = (tmp_path / "results/mine.v1.md").read_text()
    effort = "at most 48 schedules and 30 s a product, chosen by auto until the estimated regret is under 1%"
    assert f"Suite mine: {effort}. Taken with tuner " in table
    assert "device_name NVIDIA H200" in table
    assert sorted(file.name for file in output.parent.iterdir()) == ["mine.v1.csv", "mine.v1.md"]
    assert command(*given, "--only", "second")[0] == 0
    (only_row,) = csv.DictReader(io.StringIO((tmp_path / "results/mine.v1.csv").read_text()))
    assert (only_row["name"], only_row["status"]) == ("second", "known")


def test_interrupting_leaves_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched = bench.search

    def search(request: object, *given: object, **named: object) -> object:
        if request.problem.m == 128:  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        return searched(request, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(bench, "search", search)
    monkeypatch.setattr(benching, "device_present", lambda: DEVICE)
    monkeypatch.setattr(benching, "open_workshop", lambda: open_workshop(SETTINGS))
    suite, space = tmp_path / "mine.csv", tmp_path / "space.yaml"
    suite.write_text(SUITE)
    space.write_text(SPACE)
    command("--suite", str(suite), "--space", str(space), "--db", str(tmp_path / "t.db"), "--output", str(tmp_path / "found"))
    rows = list(csv.DictReader(io.StringIO((tmp_path / "found.csv").read_text())))
    assert [row["status"] for row in rows] == ["measured", "skipped", "measured"]


def test_a_suite_is_not_written_over_by_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--suite mine.csv --output mine`: refused before anything is measured."""
    monkeypatch.setattr(benching, "device_present", lambda: DEVICE)
    suite, space = tmp_path / "mine.csv", tmp_path / "space.yaml"
    suite.write_text(SUITE)
    space.write_text(SPACE)
    given = ("--suite", str(suite), "--space", str(space), "--db", str(tmp_path / "t.db"), "--output", str(tmp_path / "mine"))
    code, text, said = command(*given)
    assert (code, text, said) == (2, "", f"cannot write {suite}: this is made from it; name another file")
    assert (suite.read_text(), {file.name for file in tmp_path.iterdir()}) == (SUITE, {"mine.csv", "space.yaml"})
