"""One holder of a lock file at a time; what is reported it."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from waltap.base.files.lock_file import LockFile, holder


def test_the_second_is_reported_who_holds_it_until_it_is_released(tmp_path):
    assert holder(tmp_path / "lock") is None
    assert list(tmp_path.iterdir()) == [], "a look makes no file"
    first, second = LockFile(tmp_path / "lock"), LockFile(tmp_path / "lock")
    assert (first.take(), first.take()) == (None, None)
    assert second.take() == holder(tmp_path / "lock") == str(os.getpid())
    first.release()
    first.release()
    assert holder(tmp_path / "lock") is None
    assert second.take() is None
    second.release()


def test_the_holder_is_the_process_that_holds_it_whatever_the_file_says(tmp_path):
    path = tmp_path / "lock"
    path.write_text("4711\n")
    hold = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, 2); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert holder(path) == LockFile(path).take() == str(other.pid)
        other.communicate(b"\n")
    assert holder(path) is None


@pytest.mark.parametrize("written", ["", "4711\n"], ids=["nothing", "a process"])
def test_where_the_kernel_does_not_say_it_the_holder_is_what_the_file_says(
    tmp_path, written, monkeypatch
):
    monkeypatch.setattr("waltap.base.files.lock_file.LOCKS", tmp_path / "none")
    first = LockFile(tmp_path / "lock")
    first.take()
    (tmp_path / "lock").write_text(written)
    assert holder(tmp_path / "lock") == (written.strip() or "unknown")
    first.release()


def test_a_lock_file_is_closed_to_others_and_names_its_holder_alone(tmp_path):
    """Whoever may open it could hold it; a shorter id leaves nothing of a longer one."""
    path = tmp_path / "lock"
    path.touch(0o644)
    path.write_text("123456789012345\n")
    lock = LockFile(path)
    for take in (lock.take, lock.take_over):
        take()
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.read_text() == f"{os.getpid()}\n"
    lock.release()


def test_a_lock_does_not_stand_where_its_folder_was_moved_or_another_file_has_its_name(tmp_path):
    folder = tmp_path / "log"
    folder.mkdir()
    lock = LockFile(folder / "lock")
    assert lock.is_current()
    lock.take()
    assert lock.is_current()
    folder.rename(tmp_path / "moved")
    assert not lock.is_current()
    folder.mkdir()
    other = LockFile(folder / "lock")
    assert other.take() is None
    assert (lock.is_current(), other.is_current()) == (False, True)
    lock.release()
    other.release()


def test_a_file_that_its_holder_removed_is_not_what_the_next_one_holds(tmp_path, monkeypatch):
    """The holder ends between the moment the next one opens the file, and its lock."""
    path = tmp_path / "lock"
    last, following = LockFile(path), LockFile(path)
    last.take()
    opened, real = [], os.open

    def then_removed(name: Path, flags: int, mode: int) -> int:
        opened.append(real(name, flags, mode))
        if len(opened) == 1:
            path.unlink()
            last.release()
        return opened[-1]

    monkeypatch.setattr(os, "open", then_removed)
    assert following.take() is None
    assert (len(opened), following.is_current()) == (2, True)
    following.release()


def test_who_only_looks_refuses_nobody(tmp_path, monkeypatch):
    """`waltap status` and others ask whether the file is held, by shutting it for a moment."""
    lock = LockFile(tmp_path / "lock")
    lock.take()
    lock.release()
    looking = os.open(lock.path, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    waited: list[float] = []

    def look_ends(seconds: float) -> None:
        waited.append(seconds)
        os.close(looking)

    monkeypatch.setattr("waltap.base.files.lock_file.time.sleep", look_ends)
    assert lock.take() is None
    assert len(waited) == 1
    assert LockFile(lock.path).take() == str(os.getpid())
    lock.release()
