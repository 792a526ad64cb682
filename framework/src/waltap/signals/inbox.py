"""Signals that are given in the process itself: by `Engine.signal`, and through the control socket."""

import threading
from collections import deque
from concurrent.futures import Future

import msgspec

from waltap.signals.signal import Signal

__all__ = ["SignalAnswer", "SignalInbox", "begun"]


class SignalAnswer(msgspec.Struct, frozen=True):
    """What became of a signal. ``taken``: it was understood, and what it asks for is done or under way;
    otherwise ``reason`` says why it was left out."""

    identifier: str
    taken: bool
    reason: str = ""


class SignalInbox:
    """Signals on their way from any thread to the engine's, each with the answer that its sender gets.

    A future, since the engine acts on signals between two batches of the stream: not during the initial
    snapshot, nor while there is no connection. Every future is done at the latest when the run ends.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Signal, Future[SignalAnswer]]] = deque()
        self._closed = ""

    def put(self, signal: Signal) -> "Future[SignalAnswer]":
        """Hand over a signal. Any thread may call; it does not wait."""
        future: Future[SignalAnswer] = Future()
        with self._lock:
            if not self._closed:
                self._waiting.append((signal, future))
                return future
        future.set_result(SignalAnswer(signal.identifier, taken=False, reason=self._closed))
        return future

    def take(self) -> tuple[Signal, "Future[SignalAnswer]"] | None:
        """Return the next signal, None when there is none."""
        return self._waiting.popleft() if self._waiting else None

    def close(self, why: str) -> None:
        """Answer all that was not acted on, and what comes from now on, with ``why``."""
        with self._lock:
            self._closed = why
        while (item := self.take()) is not None:
            signal, future = item
            if begun(future):
                future.set_result(SignalAnswer(signal.identifier, taken=False, reason=why))


def begun(future: "Future[SignalAnswer]") -> bool:
    """Take it that the signal is acted on from now on; False where its sender has cancelled it."""
    return future.running() or future.set_running_or_notify_cancel()
