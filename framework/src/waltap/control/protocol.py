"""What goes over a control socket: JSON lines. Each line of the client is a request, each line back the
answer to it, in order; a connection may ask as often as it likes. Sans-IO.

    {"do": "signal", "type": "log", "id": "a-1", "data": {"message": "at {}"}, "wait_ms": 5000}
    {"ok": true, "state": "streaming", "id": "a-1", "taken": true}
    {"do": "status"}
    {"ok": true, "state": "streaming", "status": {"pipeline": "shop", "events": 7, …}}
    {"do": "replay", "ids": ["16B374D8-3"], "wait_ms": 60000}
    {"ok": true, "state": "streaming", "taken": true, "letters": {"16B374D8-3": ""}}

``do`` names what is asked for; members that a request does not have are an error, so that a typing error
is not taken for consent. A line that is no request is answered too, with ``ok`` false.
"""

import msgspec

__all__ = [
    "LONGEST_WAIT_MS",
    "ControlAnswer",
    "ReplayRequest",
    "Request",
    "SignalRequest",
    "StatusRequest",
    "answered",
    "asked",
    "request_of",
]

LONGEST_WAIT_MS = 3_600_000


class SignalRequest(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="signal",
    tag_field="do",
    rename={"kind": "type", "identifier": "id"},
    forbid_unknown_fields=True,
):
    """Give a signal, and wait at most ``wait_ms`` until it is known what became of it.

    ``data`` is an object, or JSON text as the signal table has it; "" for the id: one is made.
    """

    kind: str
    identifier: str = ""
    data: dict[str, object] | str | None = None
    wait_ms: int = 0

    @property
    def text(self) -> str:
        """Return the data as JSON text."""
        if isinstance(self.data, str):
            return self.data
        return "" if self.data is None else msgspec.json.encode(self.data).decode()


class StatusRequest(
    msgspec.Struct, frozen=True, tag="status", tag_field="do", forbid_unknown_fields=True
):
    """Give the status, as ``/api/status`` has it."""

    @property
    def wait_ms(self) -> int:
        """Return 0: the answer is at hand."""
        return 0


class ReplayRequest(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="replay",
    tag_field="do",
    forbid_unknown_fields=True,
):
    """Deliver dead letters, between two transactions, and wait at most ``wait_ms`` until that has begun.

    ``ids`` are theirs; without any, all. ``again``: those that were replayed before, too. ``anew``: by the
    transforms and the format, not the record as it was.
    """

    ids: tuple[str, ...] = ()
    again: bool = False
    anew: bool = False
    wait_ms: int = 0


Request = SignalRequest | StatusRequest | ReplayRequest


class ControlAnswer(msgspec.Struct, kw_only=True, omit_defaults=True, rename={"identifier": "id"}):
    """``ok``: the request was understood. ``state`` is the pipeline's, as `Engine.state`. Of a signal
    ``identifier`` is its id; ``taken`` is None as long as the pipeline has not come to it, and where it
    is False, ``reason`` says why, as it does where ``ok`` is. ``status`` is what was asked for by
    `StatusRequest`, ``letters`` what became of those of a `ReplayRequest`: why one was refused again, ""
    of one that was delivered."""

    ok: bool
    state: str = ""
    identifier: str = ""
    taken: bool | None = None
    reason: str = ""
    status: dict[str, object] | None = None
    letters: dict[str, str] | None = None


_requests: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
_answers = msgspec.json.Decoder(ControlAnswer)


def asked(request: Request) -> bytes:
    """Return a request as a line."""
    return msgspec.json.encode(request) + b"\n"


def request_of(line: bytes) -> Request:
    """Return the request in a line. Raises: ValueError, which says what is wrong with it."""
    try:
        request = _requests.decode(line)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if not 0 <= request.wait_ms <= LONGEST_WAIT_MS:
        raise ValueError(f"wait_ms is not between 0 and {LONGEST_WAIT_MS}")
    return request


def answered(line: bytes) -> ControlAnswer:
    """Return the answer in a line. Raises: ValueError."""
    return _answers.decode(line)
