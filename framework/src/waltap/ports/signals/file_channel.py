"""Read signals from a file, one JSON object per line.

This is the signal channel ``file``; id, type and data are Debezium's.
"""

import json
import logging
from pathlib import Path

from waltap.base.property import Properties, declare
from waltap.ports.signals.signal import Signal, SignalIgnored

log = logging.getLogger(__name__)

TAKEN = ".taken"


class FileSignalProperties(Properties):
    """Where the signal channel `file` looks."""

    path: Path = declare(
        "signal.file",
        default=Path("file-signals.txt"),
        summary='File of signals, a line each: `{"id": "1", "type": "execute-snapshot", "data": '
        '{"data-collections": ["public.orders"]}}`. It is removed after reading.',
    )


class FileSignals:
    """Rename the signal file, read it and delete it.

    A writer that appends later makes a new file.
    """

    def __init__(self, properties: FileSignalProperties) -> None:
        self._path = properties.path
        self._taken = self._path.with_name(self._path.name + TAKEN)
        self._unfinished = -1

    def poll(self) -> list[Signal]:
        """Return the signals that have arrived."""
        try:
            # a process that died after the rename left a file that nothing has read
            if not self._taken.exists():
                if not self._complete():
                    return []
                self._path.rename(self._taken)
            lines = self._taken.read_bytes().splitlines()
            self._taken.unlink()
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                _leave_out(f"{self._path} cannot be taken: {error.strerror}")
            return []
        return [signal for line in lines if line.strip() and (signal := _signal(line)) is not None]

    def _complete(self) -> bool:
        with self._path.open("rb") as file:
            size = file.seek(0, 2)
            if size:
                file.seek(-1, 2)
            # without a last newline a writer may be inside a line: wait until the size is stable
            if file.read(1) in {b"\n", b""} or size == self._unfinished:
                self._unfinished = -1
                return size > 0
        self._unfinished = size
        return False

    def close(self) -> None:
        """Do nothing: no file stays open."""


def _signal(line: bytes) -> Signal | None:
    try:
        item = json.loads(line)
        identifier, kind, data = str(item["id"]), item["type"], item.get("data")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        _leave_out("a line of the signal file is not a JSON object with id and type")
        return None
    if not isinstance(kind, str):
        _leave_out("the type of a signal in the signal file is not a string")
        return None
    text = data if isinstance(data, str) else "" if data is None else json.dumps(data)
    return Signal(identifier, kind, text)


def _leave_out(why: str) -> None:
    log.warning("signal ignored: %s", why, extra={"error_code": SignalIgnored.code})
