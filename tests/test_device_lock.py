"""The GPU's lock: one place for all users, whatever lies there."""

from __future__ import annotations

import os
import signal
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from search_spaces.errors import MachineFault, UserError
from tuner import device_lock
from tuner.device_lock import DeviceLock, lock_path

NOBODY = 65534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="takes another user")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as /run/lock is. Those above it, which pytest makes for its user alone, let others through."""
    folder = tmp_path / "lock"
    folder.mkdir()
    folder.chmod(0o1777)
    for above in (tmp_path, *(folder for folder in tmp_path.parents if folder.name.startswith(("pytest-", "popen-")))):
        above.chmod(above.stat().st_mode | 0o011)
    monkeypatch.setattr(device_lock, "PLACES", (folder, tmp_path))
    return folder


def nothing(sentence: str) -> None:
    raise AssertionError(f"waits: {sentence}")


def in_a_child(work: Callable[[], None]) -> str:
    """What it raises, in a process of its own that is another user's."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setegid(NOBODY)
            os.seteuid(NOBODY)
            work()
            os.write(writes, b"done")
        except BaseException as error:
            os.write(writes, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(writes)
    os.waitpid(child, 0)
    with os.fdopen(reads) as said:
        return said.read()


def take() -> None:
    DeviceLock("GPU-0", nothing).close()


def test_the_place_does_not_depend_on_who_asks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = lock_path("GPU-0")
    for name in ("TMPDIR", "XDG_RUNTIME_DIR", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert lock_path("GPU-0") == before
    assert before.parent in (Path("/run/lock"), Path("/tmp"))


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o1755])
def test_a_folder_that_is_not_for_all_is_left_for_the_next(place: Path, mode: int) -> None:
    assert lock_path("GPU-0") == place / "tuner-gpu-GPU-0.lock"
    place.chmod(mode)
    assert lock_path("GPU-0") == place.parent / "tuner-gpu-GPU-0.lock"


def test_a_device_s_name_stays_in_the_folder(place: Path) -> None:
    assert lock_path("../MIG-GPU-1/2/3é") == place / "tuner-gpu----MIG-GPU-1-2-3-.lock"


@AS_ROOT
@pytest.mark.parametrize("umask", [0o077, 0o022, 0o777])
def test_whatever_the_umask_another_user_can_take_it(place: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        take()
    finally:
        os.umask(before)
    assert stat.S_IMODE(lock_path("GPU-0").stat().st_mode) == 0o666
    assert in_a_child(take) == "done"


@AS_ROOT
def test_a_file_that_may_not_be_opened_is_a_sentence(place: Path) -> None:
    path = lock_path("GPU-0")
    path.write_text("kept")
    path.chmod(0o600)
    sentence = f"UserError: the GPU's lock {path} may not be opened (of user 0, mode 0600): have it removed, or `chmod 666` by its owner"
    assert in_a_child(take) == sentence


def test_one_of_ours_that_keeps_others_out_is_opened_to_them(place: Path) -> None:
    path = lock_path("GPU-0")
    path.touch()
    path.chmod(0o600)
    take()
    assert stat.S_IMODE(path.stat().st_mode) == 0o666


def test_a_hard_link_to_a_private_file_is_not_opened_to_others(place: Path) -> None:
    private = place.parent / "private"
    private.touch(0o600)
    private.chmod(0o600)
    os.link(private, lock_path("GPU-0"))
    take()
    assert stat.S_IMODE(private.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (os.mkfifo, "a FIFO"),
        (os.mkdir, "a directory"),
        (lambda path: os.symlink(f"{path}-target", path), "a symbolic link"),
        (lambda path: os.symlink("/etc/hostname", path), "a symbolic link"),
        (lambda path: os.mknod(path, 0o600 | stat.S_IFSOCK), "a socket"),
    ],
)
def test_what_is_no_file_is_refused_and_left_alone(place: Path, make: Callable[[Path], None], what: str) -> None:
    path = lock_path("GPU-0")
    make(path)
    with pytest.raises(UserError) as refused:
        take()
    assert str(refused.value) == f"the GPU's lock {path} is {what}, and has to be a regular file: have it removed"
    assert [entry.name for entry in place.iterdir()] == [path.name]  # nothing was made where the link points


def test_a_folder_that_is_gone_is_the_machine_s_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(device_lock, "PLACES", (tmp_path / "none",))
    with pytest.raises(MachineFault, match="cannot be opened: No such file or directory"):
        take()


def test_waiting_is_said_once_and_ends_with_the_holder(place: Path) -> None:
    said, taken = [], threading.Event()
    waits = threading.Event()

    def wait(sentence: str) -> None:
        said.append(sentence)
        waits.set()

    def second() -> None:
        with DeviceLock("GPU-0", wait):
            taken.set()

    with DeviceLock("GPU-0", nothing):
        DeviceLock("GPU-1", nothing).close()  # another GPU is free
        line = threading.Thread(target=second)
        line.start()
        assert waits.wait(60)
        assert not taken.is_set()
    line.join(60)
    assert taken.is_set()
    assert said == ["another tuner measures on this GPU; waiting for it"]


def test_waiting_can_be_interrupted(place: Path) -> None:
    def interrupt(sentence: str) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.05)

    def ring(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, ring)
    try:
        with DeviceLock("GPU-0", nothing), pytest.raises(KeyboardInterrupt):
            DeviceLock("GPU-0", interrupt)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    take()  # the one that gave up holds nothing


def test_a_file_that_was_removed_is_not_what_others_meet_at(place: Path) -> None:
    """Whoever waits for a file that is removed meanwhile goes on to the new one."""
    first = DeviceLock("GPU-0", nothing)

    def remove(sentence: str) -> None:
        lock_path("GPU-0").unlink()
        first.close()

    with DeviceLock("GPU-0", remove):
        said: list[str] = []

        def stop(sentence: str) -> None:
            said.append(sentence)
            raise InterruptedError

        with pytest.raises(InterruptedError):
            DeviceLock("GPU-0", stop)
        assert said
