"""What a running pipeline answers on its control socket."""

from collections.abc import Callable
from concurrent.futures import Future

import msgspec

from waltap.control.protocol import (
    ControlAnswer,
    ReplayRequest,
    SignalRequest,
    StatusRequest,
    request_of,
)
from waltap.pipeline.redelivery import ReplayAnswer
from waltap.pipeline.status import PipelineStatus
from waltap.pipeline.status_document import status_document
from waltap.signals.inbox import SignalAnswer
from waltap.signals.signal import Signal

__all__ = ["ENVELOPE_BYTES", "ControlServer"]

ENVELOPE_BYTES = 64 * 1024
"""What a request may have beyond the data of its signal, twice as long where it is text in JSON."""


class ControlServer:
    """Answers requests. ``give`` hands a signal to the engine, ``replay`` a wish for dead letters;
    ``status`` is the engine's, ``identifier`` gives a new one."""

    def __init__(
        self,
        give: "Callable[[Signal], Future[SignalAnswer]]",
        status: Callable[[], PipelineStatus],
        identifier: Callable[[], str],
        replay: "Callable[[ReplayRequest], Future[ReplayAnswer]]",
    ) -> None:
        self._give, self._status, self._identifier = give, status, identifier
        self._replay = replay

    def answer(self, line: bytes) -> bytes:
        """Return the answer to one line."""
        try:
            request = request_of(line)
        except ValueError as error:
            return msgspec.json.encode(
                ControlAnswer(ok=False, reason=f"this is no request: {error}")
            )
        if isinstance(request, StatusRequest):
            status = self._status()
            answer = ControlAnswer(ok=True, state=status.state, status=status_document(status))
            return msgspec.json.encode(answer)
        if isinstance(request, ReplayRequest):
            return msgspec.json.encode(self._replayed(request))
        return msgspec.json.encode(self._signal(request))

    def _replayed(self, request: ReplayRequest) -> ControlAnswer:
        """Wait until a replay begins, at most as long as asked; one that has begun is waited for."""
        future = self._replay(request)
        try:
            found = future.result(request.wait_ms / 1000)
        except TimeoutError:
            if future.cancel():
                state = self._status().state
                why = f"nothing was replayed: the pipeline is in state {state}"
                return ControlAnswer(ok=True, state=state, taken=False, reason=why)
            found = future.result()
        return ControlAnswer(
            ok=True,
            state=self._status().state,
            taken=not found.reason,
            reason=found.reason,
            letters=found.letters,
        )

    def _signal(self, request: SignalRequest) -> ControlAnswer:
        signal = Signal(request.identifier or self._identifier(), request.kind, request.text)
        future = self._give(signal)
        try:
            given = future.result(request.wait_ms / 1000)
        except TimeoutError:
            return ControlAnswer(ok=True, state=self._status().state, identifier=signal.identifier)
        return ControlAnswer(
            ok=True,
            state=self._status().state,
            identifier=signal.identifier,
            taken=given.taken,
            reason=given.reason,
        )
