"""A file that log lines are added to, which others may move away at any time."""

import os
import sys
from contextlib import suppress
from pathlib import Path

from waltap.errors import ConfigurationError, PropertyProblem

__all__ = ["LogFile"]

MODE = 0o640


class LogFile:
    """Adds lines at the end, each with one write: several processes may share it.

    Before each line it looks whether the file is still the one that has the name, and opens it anew where
    it was moved or deleted: logrotate needs no signal, and no line is lost or copied. Lines that cannot be
    written go to standard error, with what is wrong once.
    """

    def __init__(self, path: Path) -> None:
        """Raises: ConfigurationError where it cannot be opened."""
        self.path = path
        self._told = ""
        try:
            self._file = _opened(path)
        except OSError as error:
            problem = PropertyProblem(
                "waltap.log.file", f"cannot be written: {error.strerror}", value=str(path)
            )
            raise ConfigurationError([problem], origin="the log file") from error

    def write(self, line: str) -> None:
        """Add a line."""
        try:
            if not self._named():
                file = _opened(self.path)
                self.close()
                self._file = file
            left = f"{line}\n".encode("utf-8", "backslashreplace")
            while left:
                left = left[os.write(self._file, left) :]
            self._told = ""
        except OSError as error:
            if self._told != str(error.strerror):
                self._told = str(error.strerror)
                sys.stderr.write(f"waltap: {self.path} cannot be written: {error.strerror}\n")
            sys.stderr.write(f"{line}\n")

    def _named(self) -> bool:
        """Tell whether the open file has the name."""
        try:
            there = self.path.stat()
        except OSError:
            return False
        mine = os.fstat(self._file)
        return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)

    def close(self) -> None:
        """Close it; may be called twice."""
        with suppress(OSError):
            os.close(self._file)


def _opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, MODE)
