"""Write to a file that other processes may move or replace."""

import os
from pathlib import Path

from waltap.ports.sink.sink import SinkContext
from waltap_sinks.sql.properties import SqlProperties
from waltap_sinks.sql.targets.target import SqlTarget


class FileTarget(SqlTarget):
    """Hold the file that was opened."""

    def __init__(self, properties: SqlProperties, context: SinkContext) -> None:
        super().__init__(properties, context)
        self._file: Path | None = None
        self._opened: tuple[int, int] | None = None

    def keep_file(self, path: str | None) -> None:
        """Record the opened file, if there is one."""
        self._file = Path(path).absolute() if path and Path(path).is_file() else None
        self._opened = self._inode()

    def replaced(self) -> bool:
        # The committed file may have been moved, deleted, or written by another process.
        return self._inode() != self._opened

    def _inode(self) -> tuple[int, int] | None:
        found = self._status()
        return None if found is None else (found.st_dev, found.st_ino)

    def _status(self) -> os.stat_result | None:
        try:
            return None if self._file is None else self._file.stat()
        except OSError:
            return None
