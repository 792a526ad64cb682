"""Pass signals from other threads to the engine.

They come from `Engine.signal` and from the control socket.
"""

import threading
from collections import deque
from concurrent.futures import Future

import msgspec

from waltap.ports.signals.signal import Signal


class SignalAnswer(msgspec.Struct, frozen=True):
    """The outcome of one signal."""

    identifier: str
    # whether the engine accepted the signal; its work is done or in progress
    taken: bool
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
        future.set_result(SignalAnswer(signal.identifier, taken=False, reason=self._closed))
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
                future.set_result(SignalAnswer(signal.identifier, taken=False, reason=why))


def begun(future: "Future[SignalAnswer]") -> bool:
    """Return whether the engine may act on a signal.

    The sender can no longer cancel it then. False: the sender has cancelled it.
    """
    return future.running() or future.set_running_or_notify_cancel()
