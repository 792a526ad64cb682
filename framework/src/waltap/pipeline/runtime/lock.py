"""Allow one process per pipeline.

Two would share offset, slot and output, and undo each other's work.
"""

import socket
from contextlib import suppress
from pathlib import Path
from typing import Self

from waltap.base.files.durable_file import FOLDER, close_to_others, private_folder
from waltap.base.files.lock_file import LockFile, holder, noted
from waltap.errors import OffsetError
from waltap.pipeline.runtime.leadership import Leadership
from waltap.ports.offsets.state_folder import LOCK, unusable

LEASED = "leased"
"""Start of the note in the lock file of a process with a lease; machine and seconds follow."""

PipelineRunning = OffsetError.define("PipelineRunning", "WT-6004")
StateFolderGone = OffsetError.define("StateFolderGone", "WT-6008")


def machine() -> str:
    """Return an identity of this machine until it restarts.

    The processes of one machine see each other's locks, also between containers.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname().replace(" ", "-") or "unknown"


def running(folder: Path) -> OffsetError | None:
    """Return the error of a running pipeline, None without one."""
    pid = holder(folder / LOCK)
    return None if pid is None else _running(pid)


def _close_parent(folder: Path) -> None:
    """Close ``waltap.state.dir`` to others if it has only states of pipelines."""
    with suppress(OSError):
        if all((found / LOCK).exists() for found in folder.iterdir()):
            folder.chmod(folder.stat().st_mode & FOLDER)


def _running(pid: str) -> OffsetError:
    return PipelineRunning(f"process {pid} runs this pipeline already", pid=pid)


class PipelineLock:
    """Lock the pipeline's state folder while the block lasts.

    Under a lease the lock proves that the last owner is gone: the kernel releases the lock of
    a dead process. If it is still held, or was held on another machine, whose locks may be invisible here,
    the last owner may be alive without knowing that it lost the lease. Then its lease is outlasted, and
    the lock taken over. The old owner writes nothing more, see `Leadership.check`.
    """

    def __init__(self, folder: Path, leadership: Leadership | None = None) -> None:
        self._file = LockFile(folder / LOCK)
        self._made: list[Path] = []
        self._leadership = leadership if leadership is not None and leadership.leased else None

    def check(self) -> None:
        """Raise if this process may no longer write.

        Raises: LeaseLost; StateFolderGone if the locked folder is no longer the pipeline's.
        """
        if self._leadership is not None:
            self._leadership.check()
        if not self._file.is_current():
            folder = self._file.path.parent
            raise StateFolderGone(
                f"{folder} was moved or deleted, or another process replaced it", path=folder
            )

    def __enter__(self) -> Self:
        """Take the lock. Raises: PipelineRunning, StateFolderUnusable."""
        folder = self._file.path.parent
        try:
            self._made = [each for each in (folder, folder.parent) if not each.exists()]
            private_folder(folder)
            close_to_others(folder)
            if self._leadership is not None:
                self._take_leased(self._leadership)
                pid = None
            else:
                pid = self._file.take()
            _close_parent(folder.parent)
        except OSError as error:  # a full disk lets an empty file be made
            self._leave()
            raise unusable(folder, error) from error
        if pid is not None:
            raise _running(pid)
        return self

    def _take_leased(self, leadership: Leadership) -> None:
        """Take the lock under a lease.

        Raises: PipelineRunning if a process without a lease has it; LeaseLost, StopRequested, OSError.
        """
        before = noted(self._file.path)
        note = f"{LEASED} {machine()} {leadership.seconds:g}\n"
        pid = self._file.take(note)
        if pid is not None and not before.startswith(LEASED):
            raise _running(pid)
        _, there, seconds = before.split() if before.count(" ") == 2 else ("", "", "0")
        if before and (pid is not None or there != machine()):
            leadership.outlast(max(float(seconds), leadership.seconds))
        if pid is not None:
            self._file.take_over(note)
        self.check()

    def leave_nothing(self) -> None:
        """Remove the lock file and an empty folder in the end."""
        folder = self._file.path.parent
        self._made = [folder, folder.parent]

    def __exit__(self, *_details: object) -> None:
        self._leave()

    def _leave(self) -> None:
        # The file stays, but where a start was refused before it kept anything.
        path = self._file.path
        with suppress(OSError):
            if self._made and [found.name for found in path.parent.iterdir()] == [LOCK]:
                path.unlink()
                for folder in self._made:
                    folder.rmdir()
        self._file.release()
