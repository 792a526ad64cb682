"""A file that one process holds: who has it may write what lies beside it."""

import fcntl
import os
import time
from pathlib import Path
from typing import Final

from waltap.offsets.private_file import private

__all__ = ["LockFile", "holder", "noted"]

LOOK_S: Final = 0.005
LOOKS: Final = 1000
LOCKS: Final = Path("/proc/locks")
"""The locks of this machine, on Linux."""


class LockFile:
    """The lock file ``path``, with the holder's process id in it; its folder must exist.

    The kernel lets go of it when the process dies, however it dies. Only local disks keep such locks.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = -1
        self._noted = False

    def take(self, note: str = "") -> str | None:
        """Hold the file until `release`. Returns None, or the process id of who has it ("unknown" where
        nothing says it); taking what is held by this object changes nothing. Raises: OSError.

        ``note`` is a line that stands in the file until `release`, and stays when the process dies.
        """
        while self._file < 0:
            file = private(self.path, os.O_RDWR | os.O_CREAT)
            try:
                if not _shut_alone(file):
                    return _holder(file)
                if _names(self.path, file):
                    self._write(file, note)
                    self._file, file = file, -1
                # otherwise its last holder removed it after it was opened here
            finally:
                if file >= 0:
                    os.close(file)
        return None

    def take_over(self, note: str = "") -> None:
        """Hold a new file of that name, whoever holds the present one: that one `stands` no more. For a
        caller who knows that its holder may write nothing any more. Raises: OSError."""
        self.release()
        draft = self.path.with_name(f"{self.path.name}.new")
        file = private(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
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

    def stands(self) -> bool:
        """Tell whether what is held is still the file of that name: not where the folder was moved or
        deleted, whatever stands in its place. Where nothing is held there is nothing to tell: True."""
        return self._file < 0 or _names(self.path, self._file)

    def release(self) -> None:
        """Let go of the file, which stays; may be called twice."""
        if self._file >= 0:
            if self._noted:
                os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = -1


def noted(path: Path) -> str:
    """Return the note in the lock file ``path``: that of who holds it, or of who held it last and died."""
    try:
        return path.read_text("ascii", "replace").partition("\n")[2].strip()
    except OSError:
        return ""


def holder(path: Path) -> str | None:
    """Return the process id of who holds the lock file ``path``, None when nobody does; makes nothing."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None  # nobody has ever held it
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
    """Hold the file, unless somebody holds it. Who only looks, as `holder` does, shuts it for a moment,
    and is waited for."""
    for _ in range(LOOKS):
        if _shut(file, fcntl.LOCK_EX):
            return True
        if not _shut(file, fcntl.LOCK_SH):
            return False
        fcntl.flock(file, fcntl.LOCK_UN)
        time.sleep(LOOK_S)
    return False


def _holder(file: int) -> str:
    """Return the process id of who holds the lock: the kernel's, else the one that is written in the file,
    where the kernel does not say it (another system, another container, a network)."""
    held = os.fstat(file)
    inode, place = str(held.st_ino), f"{os.major(held.st_dev):02x}:{os.minor(held.st_dev):02x}"
    written = _written(file)
    try:
        locks = [line.split() for line in LOCKS.read_text("ascii").splitlines()]
    except (OSError, ValueError):
        return written
    # some filesystems have a device of their own for each volume, which is not the one of stat
    found = {
        lock[4]: lock[5].rpartition(":")[0]
        for lock in locks
        if len(lock) > 5 and lock[1] == "FLOCK" and lock[5].rpartition(":")[2] == inode
    }
    here = [pid for pid, device in found.items() if device == place] or list(found)
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
