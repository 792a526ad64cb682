"""Parse HTTP requests strictly. Sans-IO.

A proxy or browser in front of this server must see the same requests in a stream of bytes. So an
ambiguous request is refused, and its connection ends.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, urlsplit

__all__ = ["LONGEST_BODY", "MonitorRequest", "RequestRefused", "body_length", "taken_apart"]

LONGEST_BODY: Final = 1 << 20

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_DIGITS: Final = re.compile(r"[0-9]{1,15}")
_ONCE: Final = ("host", "content-length", "content-type", "origin", "authorization")


class RequestRefused(Exception):
    """A request gets the answer ``status``, and its connection ends."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorRequest:
    """A parsed request."""

    method: str
    path: str
    # the last value of each name
    query: Mapping[str, str]
    # with lower-case names
    headers: Mapping[str, str]
    body: bytes = b""


def taken_apart(
    method: str, target: str, headers: Sequence[tuple[str, str]], *, malformed: bool = False
) -> MonitorRequest:
    """Return a request without its body.

    ``malformed``: the HTTP library dropped lines of its headers. Raises: RequestRefused.
    """
    if malformed:
        raise RequestRefused(400, "the headers are malformed")
    found: dict[str, str] = {}
    for name, value in headers:
        if not _TOKEN.fullmatch(name) or "\r" in value or "\n" in value:
            raise RequestRefused(400, "a header is malformed")
        lower = name.lower()
        # with two values a proxy could use the other one
        if lower in found and lower in _ONCE:
            raise RequestRefused(400, f"there is more than one {lower} header")
        found[lower] = value.strip(" \t")
    if not target.startswith("/"):
        raise RequestRefused(400, "the request's address is not a path")
    try:
        parts = urlsplit(target)
    except ValueError as cause:
        raise RequestRefused(400, "the request's address is none") from cause
    if parts.netloc:
        # ``//host/path`` names another host than the Host header
        raise RequestRefused(400, "the request's address is not a path")
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    return MonitorRequest(method=method, path=parts.path, query=query, headers=found)


def body_length(request: MonitorRequest) -> int:
    """Return the length of the body. Raises: RequestRefused."""
    # with Content-Length beside it a Transfer-Encoding makes the end of the body ambiguous
    if "transfer-encoding" in request.headers:
        raise RequestRefused(501, "a body needs Content-Length, and no Transfer-Encoding")
    text = request.headers.get("content-length")
    if text is None:
        if request.method == "POST":
            raise RequestRefused(411, "the body has no length")
        return 0
    if not _DIGITS.fullmatch(text):
        raise RequestRefused(400, "Content-Length is no number")
    length = int(text)
    if length and request.method != "POST":
        raise RequestRefused(400, f"{request.method} has no body")
    if length > LONGEST_BODY:
        raise RequestRefused(413, f"the body is longer than {LONGEST_BODY} bytes")
    return length
