"""One process per pipeline: two would share offset, slot and output, and undo each other's work."""

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from waltap.errors import OffsetError
from waltap.offsets.lock_file import LockFile, holder
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
    pid = holder(folder / LOCK)
    return None if pid is None else _running(pid)


def _running(pid: str) -> PipelineRunning:
    return PipelineRunning(f"process {pid} runs this pipeline already", pid=pid)


class PipelineLock:
    """A lock on the pipeline's state folder, held while the ``with`` block lasts."""

    def __init__(self, folder: Path) -> None:
        self._file = LockFile(folder / LOCK)
        self._made: list[Path] = []

    def __enter__(self) -> Self:
        """Take the lock. Raises: PipelineRunning, StateFolderUnusable."""
        folder = self._file.path.parent
        try:
            self._made = [each for each in (folder, folder.parent) if not each.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            pid = self._file.take()
        except OSError as error:  # a full disk lets an empty file be made
            self._leave()
            raise unusable(folder, error) from error
        if pid is not None:
            raise _running(pid)
        return self

    def leave_nothing(self) -> None:
        """At the end of the block remove the lock's file, and its folder when nothing else is in it."""
        folder = self._file.path.parent
        self._made = [folder, folder.parent]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The file stays, but where a start was refused before it kept anything.
        self._leave()

    def _leave(self) -> None:
        path = self._file.path
        with suppress(OSError):
            if self._made and [found.name for found in path.parent.iterdir()] == [LOCK]:
                path.unlink()
                for folder in self._made:
                    folder.rmdir()
        self._file.release()
