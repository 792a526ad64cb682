"""Pass requests from other threads to the engine.

They come from `Engine.signal` and from the control socket.
"""

import json
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from waltap.base.property import Properties, declare
from waltap.base.redaction import redacted
from waltap.ports.signals.signal import Signal, SignalIgnored

log = logging.getLogger(__name__)


class SignalAnswer(msgspec.Struct, frozen=True):
    """The outcome of one signal."""

    identifier: str
    # whether the engine accepted the signal, and has stored its request
    accepted: bool
    # why the engine ignored the signal, or a part of it
    reason: str = ""


Request = TypeVar("Request")
Answer = TypeVar("Answer")


class EngineInbox(Generic[Request, Answer]):
    """Queue other threads' requests for the engine, with futures.

    The engine acts between two batches of the stream, so neither during the initial snapshot nor
    without a connection. Every future is done when the run ends: ``refusal`` makes the answers then.
    """

    def __init__(self, refusal: Callable[[Request, str], Answer]) -> None:
        self._refusal = refusal
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Request, Future[Answer]]] = deque()
        self._closed = ""

    def __bool__(self) -> bool:
        # A copy, since other threads add requests meanwhile.
        return any(not future.cancelled() for _, future in tuple(self._waiting))

    def put(self, request: Request) -> "Future[Answer]":
        """Queue a request without waiting; any thread may call."""
        future: Future[Answer] = Future()
        with self._lock:
            if not self._closed:
                self._waiting.append((request, future))
                return future
        future.set_result(self._refusal(request, self._closed))
        return future

    def take(self) -> tuple[Request, "Future[Answer]"] | None:
        """Return the next request, None in an empty queue."""
        return self._waiting.popleft() if self._waiting else None

    def close(self, why: str) -> None:
        """Refuse the waiting requests and all later ones with the reason ``why``."""
        with self._lock:
            self._closed = why
        while (item := self.take()) is not None:
            request, future = item
            if begun(future):
                future.set_result(self._refusal(request, why))


def begun(future: "Future[Answer]") -> bool:
    """Return whether the engine may act on a request.

    The sender can no longer cancel it then. False: the sender has cancelled it.
    """
    return future.running() or future.set_running_or_notify_cancel()


TAKEN = ".taken"


class FileSignalProperties(Properties):
    """Where the signal channel `file` looks."""

    path: Path = declare(
        "signal.file",
        default=Path("file-signals.txt"),
        summary='File of signals, a line each: `{"id": "1", "type": "execute-snapshot", "data": '
        '{"data-collections": ["public.orders"]}}`. It is removed once stored.',
    )


class FileSignals:
    """Rename the signal file, read it, and delete it when its signals are confirmed.

    A writer that appends later makes a new file.
    """

    def __init__(self, properties: FileSignalProperties) -> None:
        self._path = properties.path
        self._taken = self._path.with_name(self._path.name + TAKEN)
        self._unfinished = -1

    def poll(self) -> list[Signal] | None:
        try:
            # a process that died after the rename may not have acted on the signals
            if not self._taken.exists():
                if not self._complete():
                    return []
                self._path.rename(self._taken)
            lines = self._taken.read_bytes().splitlines()
            read = (
                parsed_signal(line, "a line of the signal file") for line in lines if line.strip()
            )
            found = [signal for signal in read if signal is not None]
            if not found:
                self.confirm()
        except FileNotFoundError:
            return []
        except OSError as error:
            _leave_out(f"{self._path} cannot be read: {error.strerror}")
            return None
        return found

    def confirm(self) -> None:
        self._taken.unlink(missing_ok=True)

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


def parsed_signal(data: bytes, where: str) -> Signal | None:
    """Return the signal of a JSON object with id, type and data.

    None, and a warning that names ``where`` it is, for anything else.
    """
    try:
        item = json.loads(data)
        identifier, kind, given = str(item["id"]), item["type"], item.get("data")
        json.dumps(item, ensure_ascii=False).encode()  # JSON may have halves of characters
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        _leave_out(f"{where} is not a JSON object with id and type")
        return None
    if not isinstance(kind, str):
        _leave_out(f"the type in {where} is not a string")
        return None
    text = given if isinstance(given, str) else "" if given is None else json.dumps(given)
    return Signal(identifier, kind, text)


def _leave_out(why: str) -> None:
    log.warning("signal ignored: %s", redacted(why), extra={"error_code": SignalIgnored.code})
