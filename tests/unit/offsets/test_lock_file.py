"""One holder of a lock file at a time; what is told of it."""

import fcntl
import os
from pathlib import Path

import pytest
from waltap.offsets.lock_file import LockFile, holder


def test_the_second_is_told_who_holds_it_until_it_is_released(tmp_path: Path) -> None:
    first, second = LockFile(tmp_path / "lock"), LockFile(tmp_path / "lock")
    assert (first.take(), first.take()) == (None, None)
    assert second.take() == holder(tmp_path / "lock") == str(os.getpid())
    first.release()
    first.release()
    assert holder(tmp_path / "lock") is None
    assert second.take() is None
    second.release()


def test_a_look_makes_no_file(tmp_path: Path) -> None:
    assert holder(tmp_path / "lock") is None
    assert list(tmp_path.iterdir()) == []


def test_a_holder_that_wrote_no_id_yet_is_unknown(tmp_path: Path) -> None:
    first = LockFile(tmp_path / "lock")
    first.take()
    (tmp_path / "lock").write_text("")
    assert holder(tmp_path / "lock") == LockFile(tmp_path / "lock").take() == "unknown"
    first.release()


def test_a_shorter_id_leaves_nothing_of_a_longer_one(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("123456789012345\n")
    lock = LockFile(tmp_path / "lock")
    lock.take()
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    lock.release()


def test_a_lock_does_not_stand_where_its_folder_was_moved_or_another_file_has_its_name(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    lock = LockFile(folder / "lock")
    assert lock.stands()
    lock.take()
    assert lock.stands()
    folder.rename(tmp_path / "moved")
    assert not lock.stands()
    folder.mkdir()
    other = LockFile(folder / "lock")
    assert other.take() is None
    assert (lock.stands(), other.stands()) == (False, True)
    lock.release()
    other.release()


def test_a_file_that_its_holder_removed_is_not_what_the_next_one_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert (len(opened), following.stands()) == (2, True)
    following.release()


def test_who_only_looks_refuses_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

    monkeypatch.setattr("waltap.offsets.lock_file.time.sleep", look_ends)
    assert lock.take() is None
    assert len(waited) == 1
    assert LockFile(lock.path).take() == str(os.getpid())
    lock.release()
