"""Send HTTP requests, each with one deadline.

httpx limits each read by itself, so a server that sends its answer byte by byte could hold a client
forever. Each connection checks the limits of its thread's exchange before each step. A stopping run
ends the exchange early.
"""

import base64
import binascii
import hashlib
import hmac
import select
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any, Final

import httpcore
import httpx

from waltap.base.network.retry import TRIES_AGAIN, retry_after
from waltap.version import VERSION

# Seconds between two checks whether the run stops.
POLL_S: Final = 0.2
# Bytes of a body that are sent between two checks.
PIECE: Final = 1 << 16
# Seconds that an exchange may last after the run stops. Most servers answer in that time, and a
# clean end then delivers the events that the sink has collected.
MARGIN_S: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """The outcome of one request."""

    # 0 if there was no answer
    status: int = 0
    # hidden, since a server may repeat a secret of the request
    body: bytes = field(default=b"", repr=False)
    # what went wrong, for messages; "" for a success
    problem: str = ""
    # whether the same request may succeed later
    again: bool = False
    # how long the server asks to wait before that
    wait_s: float = 0.0


class HttpClient:
    """End every request by a deadline, or after the run's stop.

    ``options`` go to `httpx.Client`. Proxies come from the environment.
    """

    def __init__(
        self,
        *,
        timeout_s: float,
        stopping: Callable[[], bool] = lambda: False,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        self._timeout_s, self._stopping = timeout_s, stopping
        headers = {"User-Agent": f"waltap/{VERSION}", **(headers or {})}
        self._client = _bounded(httpx.Client(timeout=timeout_s, headers=headers, **options))

    def send(
        self, method: str, url: str, *, most_bytes: int | None = None, **options: Any
    ) -> HttpAnswer:
        """Send one request. ``options`` go to `httpx.Client.request`.

        With ``most_bytes`` the answer's body is skipped, up to that size, so that the connection can
        be used again.
        """
        try:
            with (
                _exchange(self._timeout_s, self._stopping),
                self._client.stream(method, url, **options) as answer,
            ):
                body = answer.read() if most_bytes is None else _skipped(answer, most_bytes)
        except httpx.HTTPError as cause:
            return HttpAnswer(problem=f"{type(cause).__name__}: {cause}", again=True)
        status, headers = answer.status_code, answer.headers
        if answer.is_success:
            return HttpAnswer(status=status, body=body)
        date = headers.get("date") or formatdate(usegmt=True)
        return HttpAnswer(
            status=status,
            body=body,
            problem=f"it answers {status}",
            again=status in TRIES_AGAIN,
            wait_s=retry_after(headers.get("retry-after", ""), date),
        )

    def close(self) -> None:
        """Close the connections, also of a request in another thread."""
        self._client.close()


def _skipped(answer: httpx.Response, most: int) -> bytes:
    """Read a body without keeping it; it may have no end."""
    size = 0
    with suppress(httpx.TimeoutException):
        for piece in answer.iter_raw():
            size += len(piece)
            if size > most:
                break
    return b""


class _ExchangeLimits(threading.local):
    """Hold the limits of a thread's current exchange."""

    until: float = float("inf")
    stopping: Callable[[], bool] = staticmethod(lambda: False)


_limits = _ExchangeLimits()


@contextmanager
def _exchange(seconds: float, stopping: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Limit the requests of this thread to ``seconds``.

    The limit holds for an `HttpClient`. Once ``stopping`` returns true, `MARGIN_S` remain. A request
    beyond the limit raises `httpx.TimeoutException`.
    """
    # Exchanges may be nested, so the outer limits return at the end.
    before = _limits.until, _limits.stopping
    _limits.until, _limits.stopping = time.monotonic() + seconds, stopping
    try:
        yield
    finally:
        _limits.until, _limits.stopping = before


def _bounded(client: httpx.Client) -> httpx.Client:
    """Make the connections of ``client`` obey the `HttpClient.send` of their thread."""
    for transport in (client._transport, *client._mounts.values()):  # noqa: SLF001 - of httpx
        if transport is not None:
            pool: Any = transport._pool  # type: ignore[attr-defined] # noqa: SLF001 - httpx has no option for it
            assert hasattr(pool, "_network_backend")
            pool._network_backend = _DeadlineBackend()  # noqa: SLF001 - httpcore has one, httpx does not hand it on
    return client


class _DeadlineBackend(httpcore.NetworkBackend):
    """Open connections that obey the limits."""

    def __init__(self) -> None:
        self._inner = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        remaining = _remaining(httpcore.ConnectTimeout, timeout)
        return _DeadlineStream(
            self._inner.connect_tcp(host, port, remaining, local_address, socket_options)
        )


class _DeadlineStream(httpcore.NetworkStream):
    """Check the limits before each step of a connection."""

    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        until = time.monotonic() + _remaining(httpcore.ReadTimeout, timeout)
        while True:
            step = min(POLL_S, _remaining(httpcore.ReadTimeout, until - time.monotonic()))
            try:
                return self._inner.read(max_bytes, step)
            except httpcore.ReadTimeout:
                if time.monotonic() >= until:
                    raise

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        until = time.monotonic() + _remaining(httpcore.WriteTimeout, timeout)
        socket = self._inner.get_extra_info("socket")
        for start in range(0, len(buffer), PIECE):
            # A started piece cannot be withdrawn, so wait until the connection accepts bytes.
            while not select.select((), (socket,), (), POLL_S)[1]:
                _remaining(httpcore.WriteTimeout, until - time.monotonic())
            remaining = _remaining(httpcore.WriteTimeout, until - time.monotonic())
            self._inner.write(buffer[start : start + PIECE], remaining)

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        remaining = _remaining(httpcore.ConnectTimeout, timeout)
        return _DeadlineStream(self._inner.start_tls(ssl_context, server_hostname, remaining))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


def _remaining(kind: type[Exception], timeout: float | None) -> float:
    """Return the seconds that a step may take.

    Raises: ``kind`` if no time is left.
    """
    now = time.monotonic()
    if _limits.stopping():
        _limits.until = min(_limits.until, now + MARGIN_S)
        # `bool()` is false, so later steps of the exchange do not ask again.
        _limits.stopping = bool
    remaining = _limits.until - now
    if remaining <= 0 or (timeout is not None and timeout <= 0):
        raise kind("the exchange took too long")
    return min(remaining, 3600.0 if timeout is None else timeout)


PREFIXED: Final = "whsec_"


class WebhookSignature:
    """Sign requests with one secret.

    The secret is any text, or ``whsec_`` and base64.
    """

    def __init__(self, secret: str) -> None:
        self._key = secret.encode()
        if secret.startswith(PREFIXED):
            # A secret that is no base64 only looks like an encoded one: its text is the key.
            with suppress(binascii.Error):
                self._key = base64.b64decode(secret[len(PREFIXED) :], validate=True)

    def headers(self, identifier: str, seconds: int, body: bytes) -> dict[str, str]:
        """Return the headers of a signed request.

        ``seconds`` is the time since 1970 UTC. A repeated request keeps its ``identifier``.
        """
        signed = f"{identifier}.{seconds}.".encode() + body
        digest = hmac.new(self._key, signed, hashlib.sha256).digest()
        return {
            "webhook-id": identifier,
            "webhook-timestamp": str(seconds),
            "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
        }
