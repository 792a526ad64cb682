"""One process per pipeline: two would share offset, slot and output, and undo each other's work."""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from waltap.errors import OffsetError

__all__ = ["PipelineLock", "PipelineRunning", "StateFolderUnusable", "state_unusable"]


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


class PipelineLock:
    """A lock on the pipeline's state folder, held while the ``with`` block lasts.

    The kernel lets go of it when the process dies, however it dies.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        self._file = -1

    def __enter__(self) -> Self:
        """Take the lock. Raises: PipelineRunning, StateFolderUnusable."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            pid = os.read(self._file, 20).decode("ascii", "replace").strip() or "unknown"
            os.close(self._file)
            raise PipelineRunning(f"process {pid} runs this pipeline already", pid=pid) from error
        try:
            os.ftruncate(self._file, 0)
            os.write(self._file, f"{os.getpid()}\n".encode())
        except OSError as error:  # a full disk lets an empty file be made
            os.close(self._file)
            raise self._unusable(error) from error
        return self

    def _unusable(self, error: OSError) -> StateFolderUnusable:
        folder = self._path.parent
        problem = f"no state can be kept in {folder}: {error.strerror}"
        return StateFolderUnusable(problem, path=folder)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The file stays: who removed it could take it from under the next holder.
        os.close(self._file)
