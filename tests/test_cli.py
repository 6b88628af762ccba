"""The command line as a person uses it: what it prints, where, and with which exit code; and what it says to mistakes."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from db.faults import VERSION_TABLE
from db.reading import open_reader
from search_spaces.errors import MachineFault, UserError
from search_spaces.hardware import Hardware
from search_spaces.schedule import Schedule
from search_spaces.table import ScheduleTable
from tuner import cli, cli_exit
from tuner.cli import app
from tuner.cli_exit import ENDING
from tuner.cli_options import LARGEST_SEED, ProgressLine, print_result, put, say
from tuner.code_version import code_version
from tuner.search import Progress
from tuner.strategies import Candidates, StrategySettings, load_strategy

ROOT = Path(__file__).parent.parent
KEPT_DATABASE = ROOT / "tests/data/schema_0003.db"


def tuner(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tuner.cli", *arguments]
    hidden = {"CUDA_VISIBLE_DEVICES": ""}  # the same with and without a GPU
    return subprocess.run(command, cwd=ROOT, env=os.environ | hidden | environment, capture_output=True, text=True, check=False)


def refused(*arguments: str, **environment: str) -> str:
    """The one sentence that a mistake gets, with exit code 2 and nothing on stdout."""
    ran = tuner(*arguments, **environment)
    assert ran.returncode == 2, ran.stderr
    assert ran.stdout == ""
    assert "Traceback" not in ran.stderr
    lines = [line for line in ran.stderr.splitlines() if line and not re.match(r"\S+ stands for", line)]
    assert len(lines) == 1, ran.stderr
    return lines[0]


SEARCH = ("search", "--gpu", "h100", "--shape")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((*SEARCH, "4096"), "tuner: shape '4096' is not MxNxK; for example 4096x4096x4096"),
        (
            (*SEARCH, "-1x64x64"),
            "tuner: M of shape '-1x64x64' is -1; it is a whole number from 0 to 2147483647; give MxNxK, such as 4096x4096x4096",
        ),
        ((*SEARCH, "64x64x64", "--dtype", "int8"), "tuner: unknown dtype 'int8'; known: fp16, bf16, fp32"),
        ((*SEARCH, "64x64x64", "--dtype", "fp32"), "tuner: no kernel family multiplies fp32; they take bf16, fp16"),
        ((*SEARCH, "64x64x64", "--layout", "xx"), "tuner: unknown layout 'xx'; known: nn, nt, tn, tt (nt is x @ w.T with w stored [N, K])"),
        ((*SEARCH, "64x64x64", "--ld", "1,2"), "tuner: --ld '1,2' is not three numbers; give lda,ldb,ldc, with 0 for the densest"),
        (
            (*SEARCH, "64x64x64", "--budget", "soon"),
            "tuner: budget 'soon' is no time above 0; give seconds or a number with s, m or h, such as 30s",
        ),
        (
            (*SEARCH, "64x64x64", "--strategy", "luck"),
            "tuner: no strategy named 'luck'; known: auto, exhaustive, gp, local, random, ranked, spread, tpe",
        ),
        (
            (*SEARCH, "64x64x64", "--regret", "1"),
            "tuner: regret '1' is no share below 1; give a percentage such as 1%, a share such as 0.01, or 0 for no such end",
        ),
        ((*SEARCH, "64x64x64", "--model", "luck"), "tuner: no cost model named 'luck'; known: hierarchy, roofline"),
        ((*SEARCH, "64x64x64", "--families", "cutlass"), "tuner: space default has no family 'cutlass'; it has gemv, pointer, tma, wgmma"),
        ((*SEARCH, "64x64x64", "--space", "none"), "tuner: no space named 'none'; known: default, or a YAML file"),
    ],
)
def test_mistakes_get_one_sentence(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    database = tmp_path / "t.db"
    assert refused(*arguments, "--db", str(database)) == sentence
    assert not database.exists()


def test_an_unknown_gpu_is_told_the_nearest_names() -> None:
    assert "h100" in refused("search", "--shape", "64x64x64", "--gpu", "h1000")


def test_a_dtype_the_chip_lacks() -> None:
    assert refused("search", "--shape", "64x64x64", "--gpu", "t4") == "tuner: gpu t4 has no bf16; it has fp16, fp32"


def test_matrices_over_the_memory(tmp_path: Path) -> None:
    sentence = refused(*SEARCH, "1000000x1000000x64", "--db", str(tmp_path / "t.db"))
    assert re.search(r"take 2000256000000 B, h100-sxm-80gb has \d+ B", sentence)


def test_a_space_with_nothing_left(tmp_path: Path) -> None:
    space = tmp_path / "big.yaml"
    space.write_text("tma: {cta_m: 256, cta_n: 256, cta_k: 128, warps: 8, stages: 4}")
    sentence = refused(*SEARCH, "4096x4096x4096", "--space", str(space), "--db", str(tmp_path / "t.db"))
    assert "no schedule of 1 can run" in sentence
    assert "the nearest miss is 'tma 256x256x128 w8 s4'" in sentence


@pytest.mark.parametrize(
    ("shape", "what"), [("0x64x64", "the output is empty"), ("64x0x64", "the output is empty"), ("64x64x0", "the output is all zeros")]
)
@pytest.mark.parametrize("command", ["search", "best", "explain"])
def test_nothing_to_tune(shape: str, what: str, command: str) -> None:
    ran = tuner(command, "--shape", shape, "--gpu", "h100")
    assert (ran.returncode, ran.stdout) == (0, f"{shape}: {what}; there is nothing to tune\n")


@pytest.mark.parametrize("command", [("best",), ("search", "--trials", "1")])
def test_a_database_that_is_none(tmp_path: Path, command: tuple[str, ...]) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("these are notes, not a database")
    assert "is not a database" in refused(*command, "--shape", "64x64x64", "--gpu", "h100", "--db", str(file)).replace("\n", "")
    assert file.read_text() == "these are notes, not a database"


def test_a_newer_database(tmp_path: Path) -> None:
    file = tmp_path / "new.db"
    file.write_bytes(KEPT_DATABASE.read_bytes())
    with sqlite3.connect(file) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '0999'")
    connection.close()
    assert "written by a newer tuner" in refused("best", "--shape", "64x64x64", "--gpu", "h100", "--db", str(file))


def test_no_database_yet(tmp_path: Path) -> None:
    assert "there is no database at" in refused("best", "--shape", "64x64x64", "--gpu", "h100", TUNER_DB=str(tmp_path / "none.db"))


def test_a_search_without_a_gpu(tmp_path: Path) -> None:
    database = tmp_path / "t.db"
    ran = tuner(*SEARCH, "512x512x512", "--trials", "3", "--db", str(database))
    assert ran.returncode == 0, ran.stderr
    assert "not measured: 3 of 3 candidates compiled for h100-sxm-80gb" in ran.stdout
    assert "no GPU is present" in ran.stderr
    with sqlite3.connect(database) as connection:
        rows = connection.execute("SELECT status, registers > 0, median_us FROM trial").fetchall()
    connection.close()
    assert rows == [("compiled", 1, None)] * 3
    best = tuner("best", "--shape", "512x512x512", "--gpu", "h100", "--db", str(database))
    assert best.returncode == 1
    assert "not measured; of what compiles, the hierarchy model expects least of" in best.stdout
    again = tuner(*SEARCH, "512x512x512", "--trials", "3", "--db", str(database), "--json")
    assert json.loads(again.stdout)["measured"] is False
    explained = tuner("explain", "--shape", "512x512x512", "--gpu", "h100", "--db", str(database))
    assert "3 compiled: shared memory predicted exactly for 3" in explained.stdout
    assert "false accepts: 0" in explained.stdout


def test_a_suite_without_a_gpu() -> None:
    sentence = "tuner: bench times schedules beside cuBLAS on h100-sxm-80gb, and no GPU is present; `tuner search` needs none"
    assert refused("bench", "--gpu", "h100") == sentence
    assert "no suite named 'lm'" in refused("bench", "--gpu", "h100", "--suite", "lm")


def test_best_from_an_old_file() -> None:
    ran = tuner("best", "--shape", "4096x4096x4096", "--gpu", "h200", "--db", str(KEPT_DATABASE), "--json")
    found = json.loads(ran.stdout)
    assert found["found"]
    assert found["measured"] is True
    assert found["stale"] is True  # its kernels are not today's
    assert found["finalist"]["winner"] is True


def test_explain_gives_reasons_with_both_numbers() -> None:
    text = tuner("explain", "--shape", "4096x4096x4096", "--gpu", "h100").stdout
    assert re.search(r"shared_memory +\d+ +'.*': needs \d+ B of shared memory,", text.replace("\n", " "))
    one = tuner("explain", "--shape", "4096x4096x4096", "--gpu", "h100", "--schedule", "tma 128x256x64 w8 s3 g8 p1 f1").stdout
    assert "CTA tile 128x256x64, warp tile 16x256x64, MMA tile 64x256x16 (wgmma 64x256x16)" in one
    fallen = tuner("explain", "--shape", "4096x4096x4096", "--gpu", "h100", "--schedule", "tma 128x256x64 w8 s5").stdout
    assert fallen == "'tma 128x256x64 w8 s5' falls: needs 245800 B of shared memory, h100-sxm-80gb gives a CTA 232448 B\n"


def test_false_rejects_are_looked_for(tmp_path: Path) -> None:
    ran = tuner("explain", "--shape", "4096x4096x4096", "--gpu", "h100", "--compile", "2", "--db", str(tmp_path / "none.db"), "--json")
    found = json.loads(ran.stdout)["agreement"]
    assert found["false_rejects"] == []
    assert found["false_accepts"] == []


def test_hand_calculations() -> None:
    roof = json.loads(tuner("roofline", "--shape", "4096x4096x4096", "--gpu", "h100", "--tile", "128x128x32", "--json").stdout)
    assert roof["flops"] == 2 * 4096**3
    assert roof["intensity"] == pytest.approx(63.0, abs=0.1)  # twice fp32's: half the bytes
    assert roof["upper_bound_seconds"] == pytest.approx(roof["compute_seconds"] + roof["memory_seconds"])
    full = json.loads(
        tuner("occupancy", "--gpu", "rtx5090", "--warps", "4", "--registers", "255", "--shared-memory", "50000", "--json").stdout
    )
    assert full["Theoretical Occupancy"] == 16.67
    assert full["Theoretical Active Warps per SM"] == 8


def test_json_is_all_that_stdout_gets() -> None:
    ran = tuner("explain", "--shape", "512x512x512", "--gpu", "h100", "--json")
    assert set(json.loads(ran.stdout)) == {"enumerated", "survivors", "fallen", "calibration", "leaders", "agreement"}
    assert "h100 stands for h100-sxm-80gb" in ran.stderr


def test_an_export_from_the_store(tmp_path: Path) -> None:
    module = tmp_path / "winners.py"
    ran = tuner("export", "--to", "python", "--gpu", "h200", "--db", str(KEPT_DATABASE), "-o", str(module))
    assert ran.returncode == 0, ran.stderr
    compile(module.read_text(), "winners.py", "exec")
    configs = tuner("export", "--to", "triton", "--gpu", "h200", "--db", str(KEPT_DATABASE), "--rename", "CTA_M=BLOCK_SIZE_M")
    assert '"BLOCK_SIZE_M":' in configs.stdout
    assert "no exporter named 'vllm'" in refused("export", "--to", "vllm", "--gpu", "h200", "--db", str(KEPT_DATABASE))
    assert "give --to python or --to triton" in refused("export", "--gpu", "h200", "--db", str(KEPT_DATABASE))


def test_an_export_does_not_write_over_its_database(tmp_path: Path) -> None:
    database = Path(shutil.copy(KEPT_DATABASE, tmp_path / "d.db"))
    before = database.read_bytes()
    given = ("export", "--to", "triton", "--gpu", "h200", "--db", str(database), "-o", str(database))
    assert "it is an SQLite database, which would be lost" in refused(*given)
    assert database.read_bytes() == before


def test_an_export_s_shapes_take_what_search_takes(tmp_path: Path) -> None:
    given = ("export", "--to", "triton", "--gpu", "h200", "--db", str(KEPT_DATABASE), "--shapes", "4096x4096x4096")
    kind = ("--dtype", "fp16", "--out-dtype", "fp32", "--layout", "tn", "--ld", "0,4104,0", "--alignment", "32", "--prepack", "a")
    assert "nothing is known for 4096x4096x4096 fp16 -> fp32 tn, ldb 4104, aligned to 32 B on h200" in refused(*given, *kind)


def test_lists_and_care() -> None:
    assert "h100-sxm-80gb" in tuner("gpus").stdout
    assert "tma:" in tuner("families").stdout
    assert "ranked:" in tuner("strategies").stdout
    assert "default: " in tuner("spaces").stdout
    assert "compile workers:" in tuner("doctor").stdout
    assert "1 compiled" in tuner("db", "stats", "--db", str(KEPT_DATABASE)).stdout
    assert tuner("db", "check", "--db", str(KEPT_DATABASE)).stdout.endswith(": sound\n")


@pytest.fixture
def at_the_command_line(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """What `main` leaves with for these arguments, and what it printed to stdout and to stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tuner", *arguments])
        code = 0
        try:
            cli.main()
        except SystemExit as left:
            code = int(left.code or 0)
        printed = capfd.readouterr()
        return code, printed.out, printed.err

    handlers = {number: signal.getsignal(number) for number in ENDING}
    yield run  # type: ignore[misc]
    for number, handler in handlers.items():
        signal.signal(number, handler)


Ran = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("option", "number", "sentence"),
    [
        ("--seed", "-1", "--seed is -1; it is a whole number from 0 to 4294967295"),
        ("--seed", "4294967296", "--seed is 4294967296; it is a whole number from 0 to 4294967295"),
        ("--seed", "²", "--seed is '²', which is no whole number"),
        ("--seed", "1.5", "--seed is '1.5', which is no whole number"),
        ("--trials", "-1", "--trials is -1; it is a whole number from 0 to 9223372036854775807"),
        ("--trials", "٣", "--trials is '٣', which is no whole number"),
        ("--top-k", "0", "--top-k is 0; it is a whole number from 1 to 9223372036854775807"),
        ("--top-k", "9" * 5000, f"--top-k is {'9' * 60}... (5000 characters); it is a whole number from 1 to 9223372036854775807"),
        ("--alignment", str(2**70), f"--alignment is {2**70}; it is a whole number from 1 to 9223372036854775807"),
        ("--alignment", "24", "alignment of 24 bytes: give a power of two of at least 2 and at most 1073741824"),
        ("--ld", "0,²,0", "--ld ldb is '²', which is no whole number"),
        ("--ld", f"0,0,{'9' * 5000}", f"--ld ldc is {'9' * 60}... (5000 characters); it is a whole number from 0 to 9223372036854775807"),
        ("--ld", "-1,0,0", "--ld lda is -1; it is a whole number from 0 to 9223372036854775807"),
        ("--prepack", "\x1b[2J", "--prepack '\\x1b[2J': give a, b or ab"),
    ],
)
def test_numbers_that_are_none_or_too_large(at_the_command_line: Ran, option: str, number: str, sentence: str) -> None:
    assert at_the_command_line(*SEARCH, "64x64x64", option, number) == (2, "", f"tuner: {sentence}\n")


@pytest.mark.parametrize("strategy", ["auto", "gp", "local", "random", "spread", "tpe"])
def test_every_strategy_takes_the_largest_seed(strategy: str) -> None:
    schedules = [Schedule(family="tma", cta_m=2**i, cta_n=128, cta_k=64) for i in range(6, 9)]
    given = Candidates(table=ScheduleTable.of(schedules), seconds=np.array([1e-6, 2e-6, 3e-6]))
    assert len(next(load_strategy(strategy)(given, StrategySettings(seed=LARGEST_SEED, limit=2)))) == 2


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (UserError("too wide"), 2, "tuner: too wide"),
        (MachineFault("no driver"), 3, "tuner: no driver"),
        (
            OSError(errno.EMFILE, "Too many open files"),
            3,
            "tuner: the machine failed: [Errno 24] Too many open files; what was measured is stored",
        ),
        (MemoryError(), 3, "tuner: the machine failed: MemoryError; what was measured is stored"),
        (
            ModuleNotFoundError("No module named 'torch'"),
            3,
            "tuner: the machine failed: No module named 'torch'; what was measured is stored",
        ),
        (
            ZeroDivisionError("division\nby zero"),
            70,
            "tuner: internal fault, ZeroDivisionError: division; please report it with what the same command says under TUNER_TRACEBACK=1",
        ),
        (KeyboardInterrupt(), 130, "tuner: interrupted; what was measured is stored, and the same command goes on from there"),
    ],
)
def test_no_error_leaves_with_the_code_of_another(
    at_the_command_line: Ran, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, sentence: str
) -> None:
    def fails() -> str:
        raise error

    monkeypatch.setattr("tuner.calculations.gpus_text", fails)
    left, out, err = at_the_command_line("gpus")
    assert (left, out, err.strip()) == (code, "", sentence)


def test_an_internal_fault_shows_its_traceback_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch, at_the_command_line: Ran) -> None:
    monkeypatch.setattr("tuner.calculations.gpus_text", lambda: 1 // 0)
    monkeypatch.setenv("TUNER_TRACEBACK", "1")
    monkeypatch.setattr(sys, "argv", ["tuner", "gpus"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_what_click_refuses_is_one_sentence_without_orders_to_the_terminal(at_the_command_line: Ran) -> None:
    assert at_the_command_line("search", "--no\x1b[2J") == (2, "", "tuner: No such option '--no\\x1b[2J'; see `tuner search --help`\n")
    assert at_the_command_line("search", "--gpu", "h100")[2] == "tuner: Missing option '--shape'; see `tuner search --help`\n"
    code, out, err = at_the_command_line()
    assert (code, out) == (2, "")
    assert "Look after the database." in err


def test_nothing_that_is_printed_gives_orders_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], h100: Hardware
) -> None:
    put("a\x1b[31mname\u202e\tof\na GPU")
    say("to stderr\x9b2J")
    print_result(True, lambda: {"name": "\x1b[2J"}, str)
    out, err = capsys.readouterr()
    assert out == 'a\\x1b[31mname\\u202e\tof\na GPU\n{\n  "name": "\\u001b[2J"\n}\n'
    assert err == "to stderr\\x9b2J\n"


def test_characters_that_the_encoding_has_not_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="latin-1"))
    cli_exit._prepare_streams()
    put("für ─ µs")
    assert printed.getvalue() == "für \\u2500 µs\n".encode("latin-1")


def test_without_a_home_it_is_said_what_to_set(at_the_command_line: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.delenv("TUNER_DB", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    code, _, err = at_the_command_line("doctor")
    assert (code, err) == (2, "tuner: it is not known where your files belong: set HOME or XDG_DATA_HOME\n")


SHELL = f"cd {ROOT}; {sys.executable} -m tuner gpus"


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (f"{SHELL} > /dev/full", 3, "tuner: cannot write to stdout: No space left on device\n"),
        (f"{SHELL} 2> /dev/full > /dev/full", 3, ""),
        (f"{SHELL} | true; exit ${{PIPESTATUS[0]}}", 141, ""),
        (f"{SHELL} 2>&- > /dev/null", 0, ""),
        (f"{SHELL} >&-", 0, ""),
        (f"{SHELL.replace('gpus', 'export')} 2>&-", 2, ""),
    ],
    ids=["full disk", "full disk for both", "reader gone", "stderr closed", "stdout closed", "stderr closed and something to say"],
)
def test_streams_that_take_nothing(command: str, code: int, said: str) -> None:
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (code, said)


def test_the_version_and_the_module(at_the_command_line: Ran) -> None:
    assert at_the_command_line("--version") == (0, f"tuner {code_version()}\n", "")


def test_an_export_for_nobody_is_told_for_whom_there_are_some(at_the_command_line: Ran) -> None:
    assert at_the_command_line("export", "--gpu", "h100") == (
        2,
        "",
        "tuner: export needs --to, which says who takes the schedules: give --to python or --to triton\n",
    )


def test_every_suite_is_named_in_the_help(at_the_command_line: Ran) -> None:
    words = " ".join(CliRunner().invoke(app, ["bench", "--help"]).output.split())
    assert "A suite's name (llm, seeds, unaligned), or a CSV file" in words


@pytest.mark.parametrize(
    "command", [("search", "--shape", "64x64x64"), ("bench",), ("calibrate", "--measure")], ids=["search", "bench", "calibrate"]
)
def test_a_driver_that_is_not_ready_is_no_reason_to_go_on_unmeasured(
    at_the_command_line: Ran, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """Its result would look like one of a machine without a GPU."""

    def not_ready() -> None:
        raise MachineFault("cannot measure: the NVIDIA driver does not answer")

    for module in ("searching", "benching", "designing"):
        monkeypatch.setattr(f"tuner.{module}.require_sound_driver", not_ready)
    code, out, err = at_the_command_line(*command, "--gpu", "h200", "--db", str(tmp_path / "t.db"))
    assert (code, out, err.splitlines()[-1]) == (3, "", "tuner: cannot measure: the NVIDIA driver does not answer")
    assert not (tmp_path / "t.db").exists()


def test_the_exit_codes_of_signals() -> None:
    assert ENDING == {signal.SIGTERM: 143, signal.SIGHUP: 143, signal.SIGQUIT: 131}


@pytest.mark.parametrize("how", ENDING)
def test_what_ends_a_program_ends_it_in_order(at_the_command_line: Ran, monkeypatch: pytest.MonkeyPatch, how: signal.Signals) -> None:
    """Whatever is under way cleans up as after Ctrl-C. Under nohup a hangup is not heard."""

    def hang_up() -> str:
        try:
            os.kill(os.getpid(), how)
            time.sleep(10)
            return "not heard"
        finally:
            cleaned.append(how)

    cleaned: list[signal.Signals] = []
    signal.signal(how, signal.SIG_DFL)  # a shell's background jobs ignore some
    monkeypatch.setattr("tuner.calculations.gpus_text", hang_up)
    assert at_the_command_line("gpus") == (ENDING[how], "", "")
    assert cleaned == [how]
    signal.signal(how, signal.SIG_IGN)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(sys, "argv", ["tuner", "gpus"])
    cli.main()


@pytest.mark.parametrize("how", [signal.SIGHUP])
def test_a_search_that_is_hung_up_on_leaves_nothing(tmp_path: Path, how: signal.Signals) -> None:
    database, files = tmp_path / "t.db", tmp_path / "tmp"
    files.mkdir()
    command = [sys.executable, "-m", "tuner", *SEARCH, "512x512x512", "--db", str(database), "--no-measure"]
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"TMPDIR": str(files)}, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("database: "):
            process.send_signal(how)
            break
    assert process.wait(timeout=60) == 143
    process.stderr.close()
    assert list(files.iterdir()) == []
    with open_reader(database) as reader:
        assert [run.status for run in reader.runs()] in ([], ["interrupted"])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stderr", [Terminal(), io.StringIO()])
def test_progress_is_one_line_that_goes_away_and_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    with ProgressLine() as line:
        line.show(Progress(compiled=9, measured=5, failed=1, total=64, best=None, regret=0.034, seconds_left=12.4))
    shown = "\r\x1b[2Kcompiled 9/64, measured 5, failed 1, estimated regret 3.4%, 12 s left\r\x1b[2K"
    assert stderr.getvalue() == (shown if stderr.isatty() else "")


def commands() -> list[str]:
    names = []
    for name, command in app.commands.items():
        names += [f"{name} {sub}" for sub in command.commands] if hasattr(command, "commands") else [name]
    return names


@pytest.mark.parametrize("command", commands())
def test_every_command_has_help_and_stands_in_the_readme(command: str) -> None:
    ran = CliRunner().invoke(app, [*command.split(), "--help"])
    assert ran.exit_code == 0
    assert len(ran.output.splitlines()[2].strip()) >= 20
    assert f"tuner {command}" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_repacked_weights_are_said_and_ranked_as_aligned() -> None:
    """K = 4100 leaves A's rows at multiples of 8 bytes, so that B alone does not let a TMA schedule run without padding."""
    ran = tuner("explain", "--shape", "4096x4096x4100", "--gpu", "h100", "--prepack", "ab", "--top-k", "1")
    assert "a repacked once: lda is 4160 in place of 4100\nb repacked once: ldb is 4160 in place of 4100" in ran.stderr
    assert " d1 " not in ran.stdout
    assert refused("explain", "--shape", "64x64x64", "--gpu", "h100", "--prepack", "c") == "tuner: --prepack 'c': give a, b or ab"
