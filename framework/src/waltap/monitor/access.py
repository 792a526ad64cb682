"""Who may ask over HTTP. Sans-IO.

A page that anybody has open in a browser may send requests to this machine; so the Host header must be one
that we were given, the Origin our own, and beyond this machine a token is needed.
"""

import hmac
from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

__all__ = ["Access", "is_loopback"]

OWN = frozenset({"same-origin", "none"})
"""What a browser says of requests that our page, or its user, makes."""
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    """Tell whether ``host`` is this machine alone."""
    if host in LOOPBACK_NAMES:
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class Access:
    """Judges requests. ``host`` is where we listen; with ``token`` every request but those for health must
    have it."""

    def __init__(self, host: str, token: str | None) -> None:
        self._local, self._host, self._token = is_loopback(host), host, token

    def refusal(
        self, method: str, headers: Mapping[str, str], token: str | None, *, open_to_all: bool
    ) -> tuple[int, str] | None:
        """Return (status, reason) where a request may not be answered; None where it may. ``token`` is
        that of the address, ``headers`` have lower-case names."""
        asked = _name(headers.get("host", ""))
        if self._local and not is_loopback(asked):
            return 421, "the Host header names another machine"
        origin = headers.get("origin")
        if origin is not None and _place(origin) != headers.get("host", ""):
            return 403, "the page that sent this is another's"
        if method == "POST" and headers.get("sec-fetch-site", "none") not in OWN:
            return 403, "the page that sent this is another's"
        if (
            method == "POST"
            and headers.get("content-type", "").split(";")[0].strip().lower() != "application/json"
        ):
            return 415, "the body must be application/json"
        if open_to_all or self._token is None:
            return None
        given = headers.get("authorization", "").removeprefix("Bearer ") or token or ""
        if hmac.compare_digest(given.encode(), self._token.encode()):
            return None
        return 401, "a token is needed: Authorization: Bearer TOKEN, or ?token=TOKEN"


def _name(host: str) -> str:
    """Return the name of a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _place(origin: str) -> str | None:
    """Return name and port of an Origin header, None where it is no address."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None
