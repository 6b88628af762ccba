"""The compile pool: what a compiler does costs one candidate, nothing is left running, and what compiles is what was predicted."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from search_spaces.errors import MachineFault
from search_spaces.gpu_files import load_gpu
from search_spaces.problem import Problem
from search_spaces.schedule import Schedule, parse_schedule
from search_spaces.space import load_space
from tuner import compile_server
from tuner.compiling import Compiled, CompileJob, CompilePool, compiler_environment
from tuner.ranking import rank
from tuner.workbench import compile_job

PROBLEM = Problem(m=256, n=256, k=256)
TESTS = Path(__file__).parent
ROOT = TESTS.parent


def job(stages: int) -> CompileJob:
    schedule = Schedule(family="pointer", cta_m=64, cta_n=64, cta_k=32, warps=4, stages=stages)
    return CompileJob(problem=PROBLEM, schedule=schedule, capability=90, sms=132, shared_memory_limit_bytes=232448)


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CompilePool:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{TESTS}")
    return CompilePool(2, 2.0, tmp_path, compile_function="faulty_compilers:by_stages")


def outcomes(pool: CompilePool, *stages: int) -> dict[int, Compiled]:
    with pool:
        pool.submit([job(s) for s in stages])
        return {done.schedule.stages: compiled for done, compiled in pool.results()}


def test_every_way_to_fail_costs_one_candidate(faulty: CompilePool) -> None:
    found = outcomes(faulty, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 1)
    assert {stages: c.status for stages, c in found.items()} == {
        1: "ok",
        3: "crashed",
        4: "crashed",
        5: "crashed",
        6: "compile_failed",
        7: "machine_fault",
        8: "compile_failed",
        9: "out_of_resources",
        10: "refused",
        12: "ok",
        13: "compile_failed",
    }
    assert found[3].message == "the compiler died of SIGABRT"
    assert found[4].message == "the compiler died of SIGSEGV"
    assert found[5].message == "the compiler left with exit code 7 and no answer"
    assert found[6].message == "RuntimeError: PassManager::run failed"
    assert found[6].log.endswith("with much more to say")
    assert found[10].message.startswith("ptxas-registers: ptxas fatal   : (C7602) Insufficient registers (64)")
    assert found[12].log.startswith("xxx")
    assert len(found[12].log) < 50_000  # of ten million


def test_a_compiler_that_never_returns_is_ended_with_what_it_started(faulty: CompilePool, tmp_path: Path) -> None:
    found = outcomes(faulty, 2, 1)
    assert (found[1].status, found[2].status) == ("ok", "compile_timeout")
    assert found[2].message == "not compiled in 2 s"
    assert not alive(int((tmp_path / "grandchild").read_text()))


def test_one_that_was_killed_from_outside_is_tried_again_alone(faulty: CompilePool, tmp_path: Path) -> None:
    assert outcomes(faulty, 11)[11].status == "ok"
    assert (tmp_path / "killed-once").exists()


def test_an_assembler_that_was_killed_is_no_fault_of_the_schedule(faulty: CompilePool, tmp_path: Path) -> None:
    assert outcomes(faulty, 14)[14].status == "ok"
    assert (tmp_path / "assembler-killed-once").exists()


def test_a_file_that_another_compiler_moved_is_looked_for_again(faulty: CompilePool, tmp_path: Path) -> None:
    assert outcomes(faulty, 15)[15].status == "ok"
    assert (tmp_path / "missing-once").exists()


def test_the_last_words_of_a_compiler_that_aborts_are_kept(faulty: CompilePool) -> None:
    found = outcomes(faulty, 16)[16]
    assert found.status == "refused"  # it died of it twice, the second time with nothing beside it
    assert found.message == "the compiler died of SIGABRT: python: LinearLayout.cpp:12: Assertion `sane' failed."
    assert found.log.startswith("python: LinearLayout.cpp:12")


def test_one_that_closes_its_pipes_and_hangs_holds_up_nobody(faulty: CompilePool) -> None:
    found = outcomes(faulty, 17, 1)
    assert (found[1].status, found[17].status) == ("ok", "compile_timeout")


def test_one_whose_helper_outlives_it_is_done_when_it_is_done(faulty: CompilePool) -> None:
    found = outcomes(faulty, 20)[20]
    assert found.status == "ok"
    assert found.seconds < 2.0  # the limit: it was not waited for


def test_limits_are_kept_while_nobody_reads(faulty: CompilePool) -> None:
    """Ten long answers fill the pipe; what finishes behind them is neither late nor lost, and more jobs may come."""
    with faulty:
        faulty.submit([job(18)] * 10 + [job(19)] * 4)
        time.sleep(4)
        faulty.submit([job(1)] * 500)
        found = [(done.schedule.stages, compiled.status) for done, compiled in faulty.results()]
    assert {pair: found.count(pair) for pair in found} == {(18, "compile_failed"): 10, (19, "ok"): 4, (1, "ok"): 500}


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with CompilePool(1, 2.0, tmp_path, compile_function="no_such_module:f") as pool:
        pool.submit([job(1), job(2)])
        with pytest.raises(MachineFault) as raised:
            list(pool.results())
    assert str(raised.value) == (
        "nothing can be compiled: the compile server left 2 times without an answer, last with exit code 1:"
        " ModuleNotFoundError: No module named 'no_such_module'; what was measured is stored, and the same command goes on from there"
    )


@pytest.mark.parametrize(
    ("stages", "status", "message"),
    [
        (21, "machine_fault", "OSError: [Errno 28] No space left on device"),
        (22, "machine_fault", "OSError: [Errno 24] Too many open files"),
        (23, "machine_fault", "RuntimeError: std::bad_alloc"),
        (24, "machine_fault", "the compiler died of SIGBUS"),
        (25, "machine_fault", "ModuleNotFoundError: No module named 'no_such_compiler'"),
        (26, "refused", "RuntimeError: PassManager::run failed: loc(unknown): error: operation does not fit"),
        (27, "machine_fault", "the compiler died of SIGABRT: LLVM ERROR: IO failure on output stream: No space left on device"),
        (28, "crashed", "the assembler died of SIGSEGV"),
        (29, "refused", "CompileTimeAssertionFailure: BLOCK_M must be at least 16"),
    ],
)
def test_what_the_machine_lacks_is_not_the_schedule_s_doing(faulty: CompilePool, stages: int, status: str, message: str) -> None:
    found = outcomes(faulty, stages)[stages]
    assert (found.status, found.message) == (status, message)


def test_one_that_aborts_once_and_then_compiles_is_good(faulty: CompilePool) -> None:
    found = outcomes(faulty, 30)[30]
    assert (found.status, found.alone) == ("ok", True)


def test_without_room_on_the_disk_no_candidate_is_blamed(faulty: CompilePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tuner.compiling.tempfile.TemporaryFile", full)
    with pytest.raises(MachineFault, match=f"the compilers cannot write to {tmp_path} .No space left on device.*set TMPDIR to another"):
        outcomes(faulty, 21)


def test_the_files_of_those_that_compile_lie_in_the_cache(tmp_path: Path) -> None:
    """Whatever kills an assembler, its input is no longer there once the cache is gone."""
    assert Path(compiler_environment(tmp_path / "cache")["TMPDIR"]).parent == tmp_path / "cache"


def test_a_server_that_cannot_fork_says_so_of_the_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    server, answered = compile_server.Server(lambda job: {}, 2, 1.0), []
    monkeypatch.setattr(os, "fork", no_more)
    monkeypatch.setattr(server, "_answer", lambda job, seconds, answer: answered.append((job["id"], answer["status"], answer["message"])))
    before = set(os.listdir("/proc/self/fd"))
    server._fork({"id": 7}, alone=False)
    assert answered == [(7, "machine_fault", "no compiler could be started: Resource temporarily unavailable")]
    assert set(os.listdir("/proc/self/fd")) == before


def test_the_interpreter_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert "TRITON_INTERPRET" not in compiler_environment(tmp_path)


def test_closing_with_work_under_way_leaves_nothing(faulty: CompilePool, tmp_path: Path) -> None:
    faulty.submit([job(2)])
    _wait_for(tmp_path / "grandchild")
    faulty.close()
    assert not alive(int((tmp_path / "grandchild").read_text()))


def test_a_killed_parent_leaves_nothing(tmp_path: Path) -> None:
    for process in _family_after(tmp_path, signal.SIGKILL):
        _wait_until_gone(process.pid)


def _family_after(marks: Path, how: signal.Signals) -> list[psutil.Process]:
    """What a process had started when it got a signal in the middle of compiling, of which it ended."""
    code = f"""
import signal, sys; sys.path[:0] = [{str(ROOT)!r}, {str(TESTS)!r}]
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
from pathlib import Path
from test_compiling import job
from tuner.compiling import CompilePool
with CompilePool(1, 600.0, Path({str(marks)!r}), compile_function="faulty_compilers:by_stages") as pool:
    pool.submit([job(2)])
    list(pool.results())
"""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{TESTS}"}
    parent = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL)
    _wait_for(marks / "grandchild")
    family = psutil.Process(parent.pid).children(recursive=True)
    assert len(family) >= 3  # server, compiler, assembler
    parent.send_signal(how)
    assert parent.wait() == -how
    return family


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_that_dies_is_restarted_with_what_is_unanswered(faulty: CompilePool, tmp_path: Path, how: signal.Signals) -> None:
    with faulty:
        faulty.submit([job(2), job(1)])
        _wait_for(tmp_path / "grandchild")
        left = psutil.Process(faulty.pid).children(recursive=True)
        os.kill(faulty.pid, how)
        found = {done.schedule.stages: compiled.status for done, compiled in faulty.results()}
    assert found == {1: "ok", 2: "compile_timeout"}
    assert len(left) >= 2  # compiler, assembler
    assert not any(alive(process.pid) for process in left)


def test_cancelled_jobs_never_come_and_end_at_once(tmp_path: Path, faulty: CompilePool) -> None:
    with faulty:
        faulty.submit([job(2), *(job(1) for _ in range(50))])
        _wait_for(tmp_path / "grandchild")
        faulty.cancel()
        assert faulty.waiting == 0
        assert faulty.poll(0.1) == []
        faulty.submit([job(1)])
        assert [compiled.status for _, compiled in faulty.results()] == ["ok"]
        _wait_until_gone(int((tmp_path / "grandchild").read_text()))


def test_ctrl_c_in_the_parent_leaves_nothing(tmp_path: Path) -> None:
    family = _family_after(tmp_path, signal.SIGINT)
    assert not any(alive(process.pid) for process in family)


def alive(pid: int) -> bool:
    """A process that ended counts as gone before anybody has collected it."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while alive(pid):
        assert time.monotonic() < deadline, f"{pid} is still there"
        time.sleep(0.02)


def _wait_for(file: Path) -> None:
    deadline = time.monotonic() + 30
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < deadline, f"{file} did not come"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("gpu", "text", "instruction"),
    [
        ("h100", "tma 128x128x64 w4 s3 g8", "wgmma m64n128k16"),
        ("h100", "pointer 128x64x64 w2 s3", "mma.sync m16n8k16"),  # half a warp group
        ("h100", "tma 64x64x64 w4 s3 k4", "wgmma m64n64k16"),
        ("a100", "pointer 128x128x32 w8 s4", "mma.sync m16n8k16"),
        ("b200", "tma 128x128x64 w4 s3", "tcgen05.mma"),
        ("rtx-5090", "pointer 64x64x32 w4 s3", "mma.sync m16n8k16"),
    ],
)
def test_what_compiles_for_a_chip_that_is_not_here(tmp_path: Path, gpu: str, text: str, instruction: str) -> None:
    hardware, problem, schedule = load_gpu(gpu), Problem(m=1024, n=1024, k=1024), parse_schedule(text)
    with CompilePool(1, 120.0, tmp_path) as pool:
        pool.submit([compile_job(schedule, problem, hardware)])
        ((_, compiled),) = pool.results()
    assert compiled.status == "ok", compiled.log
    assert compiled.main.mma_instruction == instruction
    assert len(compiled.kernels) == (2 if schedule.split_k > 1 else 1)
    assert 16 <= compiled.main.registers <= 255
    ranking = rank(problem, hardware, load_space("default"))
    row = ranking.row_of(schedule)
    if row is not None:
        assert compiled.main.shared_memory_bytes == ranking.lowering.shared_memory_bytes[row]


def test_too_many_warps_is_told_as_the_assembler_told_it(tmp_path: Path) -> None:
    """64 warps leave 32 registers a thread."""
    schedule = parse_schedule("pointer 128x128x64 w64 s3")
    given = CompileJob(problem=PROBLEM, schedule=schedule, capability=90, sms=132, shared_memory_limit_bytes=232448)
    with CompilePool(1, 120.0, tmp_path) as pool:
        pool.submit([given])
        ((_, compiled),) = pool.results()
    assert compiled.status == "refused"
    assert compiled.message.startswith("ptxas-registers: ptxas")
    assert "Insufficient registers (32)" in compiled.message
    assert "Traceback" in compiled.log


def test_a_tile_that_triton_refuses_is_told_in_its_words(tmp_path: Path) -> None:
    schedule = parse_schedule("pointer 1024x2048x32 w8 s2")
    given = CompileJob(problem=PROBLEM, schedule=schedule, capability=90, sms=132, shared_memory_limit_bytes=232448)
    with CompilePool(1, 120.0, tmp_path) as pool:
        pool.submit([given])
        ((_, compiled),) = pool.results()
        assert psutil.Process(pool.pid).num_threads() == 1  # a fork of more would be a gamble
    assert compiled.status == "refused"
    assert compiled.message == "ValueError: numel (2097152) exceeds triton maximum tensor numel (1048576)"


def test_a_false_accept_is_out_of_resources(tmp_path: Path) -> None:
    """The arithmetic let it through; the compiler's own number is over the limit it was given."""
    schedule = parse_schedule("pointer 64x64x32 w4 s3")
    given = CompileJob(problem=PROBLEM, schedule=schedule, capability=90, sms=132, shared_memory_limit_bytes=1000)
    with CompilePool(1, 120.0, tmp_path) as pool:
        pool.submit([given])
        ((_, compiled),) = pool.results()
    assert compiled.status == "out_of_resources"
    assert compiled.message == "compiled to 24576 B of shared memory, a CTA has 1000 B"


def test_spills_are_counted_in_words(tmp_path: Path) -> None:
    """256 accumulators a thread do not fit 255 registers."""
    with CompilePool(1, 120.0, tmp_path) as pool:
        pool.submit([compile_job(parse_schedule("tma 128x256x64 w4 s3"), Problem(m=4096, n=4096, k=4096), load_gpu("h100"))])
        ((_, compiled),) = pool.results()
    assert compiled.main.registers == 255
    assert compiled.main.spill_slots > 20
    assert [(tmp_path / name).is_dir() for name in compiled.cache_folders] == [True]  # what a search removes when it is done with it


def test_compiling_needs_no_torch(tmp_path: Path) -> None:
    """It would be most of the time before the first binary."""
    code = """
import sys
from dataclasses import asdict
from search_spaces.problem import Problem
from search_spaces.schedule import parse_schedule
from tuner.compile_server import compile_schedule, prepare
prepare()
for text in ("pointer 64x64x32 w4 s3", "tma 64x64x32 w4 s3 k2"):
    job = {"problem": asdict(Problem(m=256, n=256, k=256)), "schedule": asdict(parse_schedule(text))}
    answer = compile_schedule({**job, "capability": 90, "sms": 132, "shared_memory_limit_bytes": 232448})
    assert answer["status"] == "ok", answer
assert "torch" not in sys.modules
"""
    ran = subprocess.run([sys.executable, "-c", code], env=compiler_environment(tmp_path), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_the_product_is_told_from_copies_and_sums(tmp_path: Path) -> None:
    """K = 260 puts rows at multiples of 520 bytes: both operands are copied, multiplied in two parts, and the parts are added."""
    with CompilePool(1, 120.0, tmp_path) as pool:
        pool.submit([compile_job(parse_schedule("tma 64x64x64 w4 s3 k2 d1"), Problem(m=64, n=64, k=260), load_gpu("h100"))])
        ((_, compiled),) = pool.results()
    assert [kernel.name for kernel in compiled.kernels] == ["copy_rows", "copy_rows", "tma_gemm", "sum_splits"]
    assert compiled.main.name == "tma_gemm"
    assert compiled.main.mma_instruction == "wgmma m64n64k16"


def test_modules_of_the_folder_one_works_in_are_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An application has a `db` package or a `triton.py` of its own; the children must not import them."""
    work = tmp_path / "application"
    for name in ("db", "search_spaces"):
        (work / name).mkdir(parents=True)
        (work / name / "__init__.py").write_text("raise ImportError('the application's own')")
    (work / "triton.py").write_text("raise ImportError('the application's own')")
    monkeypatch.chdir(work)
    with CompilePool(1, 120.0, tmp_path) as pool:
        pool.submit([compile_job(parse_schedule("pointer 64x64x32 w4 s3"), PROBLEM, load_gpu("h100"))])
        ((_, compiled),) = pool.results()
    assert compiled.status == "ok", compiled.log
