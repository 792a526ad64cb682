"""One process per pipeline: two would share offset, slot and output, and undo each other's work."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from waltap.errors import OffsetError
from waltap.offsets.state_folder import LOCK

__all__ = [
    "PipelineLock",
    "PipelineRunning",
    "StateFolderUnusable",
    "running",
    "state_unusable",
    "unusable",
]


class PipelineRunning(OffsetError):
    """Another process runs this pipeline."""

    code = "WT-6004"
    remedy = (
        "Stop the other process (pid {pid}), or give this profile another name or waltap.state.dir: "
        "offset and slot belong to one process at a time."
    )


class StateFolderUnusable(OffsetError):
    """The pipeline's state folder cannot be made or written."""

    code = "WT-6005"
    remedy = (
        "Make {path} a folder that waltap may write to, on a disk with room; waltap.state.dir chooses "
        "another."
    )


def state_unusable(error: Exception, folder: Path) -> StateFolderUnusable | None:
    """Return what ``error`` means when it is about a file in the pipeline's state folder."""
    if not isinstance(error, OSError) or not isinstance(error.filename, str | os.PathLike):
        return None
    path = Path(error.filename)
    if not path.is_relative_to(folder):
        return None
    return StateFolderUnusable(f"{path} cannot be used: {error.strerror}", path=folder)


def unusable(folder: Path, error: OSError) -> StateFolderUnusable:
    """Return the error of a state folder that the system refuses."""
    return StateFolderUnusable(f"no state can be kept in {folder}: {error.strerror}", path=folder)


def running(folder: Path) -> PipelineRunning | None:
    """Return the error of a pipeline that runs, None when nobody holds the lock of its folder."""
    try:
        file = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _running(file)
    finally:
        os.close(file)
    return None


def _running(file: int) -> PipelineRunning:
    pid = os.pread(file, 20, 0).decode("ascii", "replace").strip() or "unknown"
    return PipelineRunning(f"process {pid} runs this pipeline already", pid=pid)


class PipelineLock:
    """A lock on the pipeline's state folder, held while the ``with`` block lasts.

    The kernel lets go of it when the process dies, however it dies.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK
        self._file = -1
        self._made: list[Path] = []

    def __enter__(self) -> Self:
        """Take the lock. Raises: PipelineRunning, StateFolderUnusable."""
        folder = self._path.parent
        try:
            self._made = [each for each in (folder, folder.parent) if not each.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise unusable(folder, error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            told = _running(self._file)
            os.close(self._file)
            raise told from None
        if not self._current():  # its last holder removed it after we had opened it
            os.close(self._file)
            return self.__enter__()
        try:
            os.ftruncate(self._file, 0)
            os.write(self._file, f"{os.getpid()}\n".encode())
        except OSError as error:  # a full disk lets an empty file be made
            self._leave()
            raise unusable(self._path.parent, error) from error
        return self

    def leave_nothing(self) -> None:
        """At the end of the block remove the lock's file, and its folder when nothing else is in it."""
        self._made = [self._path.parent, self._path.parent.parent]

    def _current(self) -> bool:
        """Tell whether the file that is locked is still the one of that name."""
        try:
            named = self._path.stat()
        except OSError:
            return False
        return named.st_ino == os.fstat(self._file).st_ino

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The file stays, but where a start was refused before it kept anything.
        self._leave()

    def _leave(self) -> None:
        with suppress(OSError):
            if self._made and [found.name for found in self._path.parent.iterdir()] == [LOCK]:
                self._path.unlink()
                for folder in self._made:
                    folder.rmdir()
        os.close(self._file)
