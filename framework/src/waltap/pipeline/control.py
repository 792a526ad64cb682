"""What a running pipeline answers on its control socket."""

from collections.abc import Callable
from concurrent.futures import Future

import msgspec

from waltap.control.protocol import Answer, SignalRequest, StatusRequest, request_of
from waltap.pipeline.status import Status
from waltap.pipeline.status_document import status_document
from waltap.signals.inbox import SignalAnswer
from waltap.signals.signal import Signal

__all__ = ["ENVELOPE_BYTES", "Control"]

ENVELOPE_BYTES = 64 * 1024
"""What a request may have beyond the data of its signal, twice as long where it is text in JSON."""


class Control:
    """Answers requests. ``give`` hands a signal to the engine, ``status`` is the engine's, ``identifier``
    gives a new one."""

    def __init__(
        self,
        give: "Callable[[Signal], Future[SignalAnswer]]",
        status: Callable[[], Status],
        identifier: Callable[[], str],
    ) -> None:
        self._give, self._status, self._identifier = give, status, identifier

    def answer(self, line: bytes) -> bytes:
        """Return the answer to one line."""
        try:
            request = request_of(line)
        except ValueError as error:
            return msgspec.json.encode(Answer(ok=False, reason=f"this is no request: {error}"))
        if isinstance(request, StatusRequest):
            status = self._status()
            answer = Answer(ok=True, state=status.state, status=status_document(status))
            return msgspec.json.encode(answer)
        return msgspec.json.encode(self._signal(request))

    def _signal(self, request: SignalRequest) -> Answer:
        signal = Signal(request.identifier or self._identifier(), request.kind, request.text)
        future = self._give(signal)
        try:
            given = future.result(request.wait_ms / 1000)
        except TimeoutError:
            return Answer(ok=True, state=self._status().state, identifier=signal.identifier)
        return Answer(
            ok=True,
            state=self._status().state,
            identifier=signal.identifier,
            taken=given.taken,
            reason=given.reason,
        )
