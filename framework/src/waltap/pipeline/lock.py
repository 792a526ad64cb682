"""One process per pipeline: two would share offset, slot and output, and undo each other's work."""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from waltap.errors import OffsetError

__all__ = ["PipelineLock", "PipelineRunning", "StateFolderUnusable"]


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
    remedy = "Make {path} a folder that waltap may write to; waltap.state.dir chooses another."


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
            raise StateFolderUnusable(
                f"no state can be kept in {self._path.parent}: {error.strerror}",
                path=self._path.parent,
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            pid = os.read(self._file, 20).decode("ascii", "replace").strip() or "unknown"
            os.close(self._file)
            raise PipelineRunning(f"process {pid} runs this pipeline already", pid=pid) from error
        os.ftruncate(self._file, 0)
        os.write(self._file, f"{os.getpid()}\n".encode())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The file stays: who removed it could take it from under the next holder.
        os.close(self._file)
