"""The signal channel ``file``: one JSON object with id, type and data per line, as Debezium reads them."""

import json
import logging
from pathlib import Path

from waltap.config.property import Properties, declare
from waltap.signals.errors import SignalIgnored
from waltap.signals.signal import Signal

__all__ = ["FileSignalProperties", "FileSignals"]

log = logging.getLogger(__name__)

TAKEN = ".taken"


class FileSignalProperties(Properties):
    """Where the signal channel `file` looks."""

    path: Path = declare(
        "signal.file",
        default=Path("file-signals.txt"),
        summary="File that signals are appended to, a line each: "
        '`{"id": "1", "type": "execute-snapshot", "data": {"data-collections": ["public.orders"]}}`. '
        "It is taken away when it was read.",
    )


class FileSignals:
    """Takes the file away and reads it: whoever appends from then on makes a new one.

    What was taken and not read when the process died is read by the next one.
    """

    def __init__(self, properties: FileSignalProperties) -> None:
        self._path = properties.path
        self._taken = self._path.with_name(self._path.name + TAKEN)
        self._unfinished = -1

    def poll(self) -> list[Signal]:
        """Return the signals that have arrived. A file that does not end in a newline is left until it
        grows no more: somebody may be writing."""
        try:
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
            if file.read(1) in {b"\n", b""} or size == self._unfinished:
                self._unfinished = -1
                return size > 0
        self._unfinished = size
        return False

    def close(self) -> None:
        """Nothing is held."""


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
