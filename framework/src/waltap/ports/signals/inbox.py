"""Pass signals from other threads to the engine.

They come from `Engine.signal` and from the control socket.
"""

import json
import logging
import threading
from collections import deque
from concurrent.futures import Future
from pathlib import Path

import msgspec

from waltap.base.property import Properties, declare
from waltap.ports.signals.signal import Signal, SignalIgnored

log = logging.getLogger(__name__)


class SignalAnswer(msgspec.Struct, frozen=True):
    """The outcome of one signal."""

    identifier: str
    # whether the engine accepted the signal; its work is done or in progress
    accepted: bool
    # why the engine ignored the signal
    reason: str = ""


class SignalInbox:
    """Queue signals for the engine, each with its sender's future.

    The engine acts on signals between two batches of the stream, so neither during the initial
    snapshot nor without a connection. Every future is done when the run ends.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Signal, Future[SignalAnswer]]] = deque()
        self._closed = ""

    def put(self, signal: Signal) -> "Future[SignalAnswer]":
        """Queue a signal without waiting; any thread may call."""
        future: Future[SignalAnswer] = Future()
        with self._lock:
            if not self._closed:
                self._waiting.append((signal, future))
                return future
        future.set_result(SignalAnswer(signal.identifier, accepted=False, reason=self._closed))
        return future

    def take(self) -> tuple[Signal, "Future[SignalAnswer]"] | None:
        """Return the next signal, None in an empty queue."""
        return self._waiting.popleft() if self._waiting else None

    def close(self, why: str) -> None:
        """Refuse the waiting signals and all later ones.

        ``why`` is the reason in their answers.
        """
        with self._lock:
            self._closed = why
        while (item := self.take()) is not None:
            signal, future = item
            if begun(future):
                future.set_result(SignalAnswer(signal.identifier, accepted=False, reason=why))


def begun(future: "Future[SignalAnswer]") -> bool:
    """Return whether the engine may act on a signal.

    The sender can no longer cancel it then. False: the sender has cancelled it.
    """
    return future.running() or future.set_running_or_notify_cancel()


# Read signals from a file, one JSON object per line.
#
# This is the signal channel ``file``; id, type and data are Debezium's.


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
