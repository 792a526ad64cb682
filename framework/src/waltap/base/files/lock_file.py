"""Lock a file for one process, to guard the files beside it."""

import fcntl
import os
import time
from pathlib import Path
from typing import Final

from waltap.base.files.durable_file import private

# `holder` locks for microseconds; together the tries last 5 s at least.
POLL_S: Final = 0.005
ATTEMPTS: Final = 1000
LOCKS: Final = Path("/proc/locks")
"""The locks of this machine, on Linux."""


class LockFile:
    """A lock file that contains the process id of its holder.

    The folder of ``path`` must exist. The kernel releases the lock when the process dies. Only local disks
    keep such locks.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = -1
        self._noted = False

    def take(self, note: str = "") -> str | None:
        """Lock the file until `release`.

        Return None on success, else the process id of the holder ("unknown" if not available). A second
        call of the holder changes nothing. ``note`` is a line in the file until `release`; a crash leaves
        the line there. Raises: OSError.
        """
        while self._file < 0:
            file = private(self.path, os.O_RDWR | os.O_CREAT)
            try:
                if not _shut_alone(file):
                    return _holder(file)
                if _names(self.path, file):
                    self._write(file, note)
                    self._file, file = file, -1
                # Otherwise another process replaced or removed the file after this one opened it.
            finally:
                if file >= 0:
                    os.close(file)
        return None

    def take_over(self, note: str = "") -> None:
        """Lock a new file, although a process may hold the old one.

        The caller must know that the old holder can no longer write; `is_current` is then false for that
        process. Raises: OSError.
        """
        self.release()
        draft = self.path.with_name(f"{self.path.name}.new")
        file = private(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            # The draft is locked before it gets the name: no other process can lock it first.
            _shut(file, fcntl.LOCK_EX)
            self._write(file, note)
            draft.replace(self.path)
        except BaseException:
            os.close(file)
            raise
        self._file = file

    def _write(self, file: int, note: str) -> None:
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n{note}".encode(), 0)
        self._noted = bool(note)

    def is_current(self) -> bool:
        """Return whether the locked file still has its name.

        It is false after the folder was moved or deleted, or after another process took the lock over. It
        is true while this object holds no lock.
        """
        return self._file < 0 or _names(self.path, self._file)

    def release(self) -> None:
        """Release the lock and keep the file; may be called twice."""
        if self._file >= 0:
            if self._noted:
                # A clean release leaves no note; only a crash does.
                os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = -1


def noted(path: Path) -> str:
    """Return the note of the present holder, or of one that died."""
    try:
        return path.read_text("ascii", "replace").partition("\n")[2].strip()
    except OSError:
        return ""


def holder(path: Path) -> str | None:
    """Return the process id of the lock's holder, None without one.

    The function creates no file.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None  # no process has locked it yet
    try:
        return None if _shut(file, fcntl.LOCK_SH) else _holder(file)
    finally:
        os.close(file)


def _shut(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _shut_alone(file: int) -> bool:
    """Lock the file unless another process holds the lock.

    `holder` takes a shared lock for a moment; this function waits for that.
    """
    for _ in range(ATTEMPTS):
        if _shut(file, fcntl.LOCK_EX):
            return True
        # A shared lock is possible beside `holder`, but not beside a real holder.
        if not _shut(file, fcntl.LOCK_SH):
            return False
        fcntl.flock(file, fcntl.LOCK_UN)
        time.sleep(POLL_S)
    return False


def _holder(file: int) -> str:
    """Return the process id of the lock's holder.

    It is the kernel's answer, or the process id in the file where the kernel has none: the holder may
    run on another system or in another container.
    """
    held = os.fstat(file)
    inode, disk = str(held.st_ino), f"{os.major(held.st_dev):02x}:{os.minor(held.st_dev):02x}"
    written = _written(file)
    try:
        locks = [line.split() for line in LOCKS.read_text("ascii").splitlines()]
    except (OSError, ValueError):
        return written
    # Some filesystems list another device number here than stat returns for the volume.
    found = {
        lock[4]: lock[5].rpartition(":")[0]
        for lock in locks
        if len(lock) > 5 and lock[1] == "FLOCK" and lock[5].rpartition(":")[2] == inode
    }
    here = [pid for pid, device in found.items() if device == disk] or list(found)
    return written if written in here or not here else here[0]


def _written(file: int) -> str:
    first = os.pread(file, 32, 0).decode("ascii", "replace").partition("\n")[0]
    return first.strip() or "unknown"


def _names(path: Path, file: int) -> bool:
    try:
        named = path.stat()
    except OSError:
        return False
    return os.path.samestat(named, os.fstat(file))
