"""Who may ask over HTTP.

A page that anybody has open in a browser may send requests to this machine; so the Host header must be one
that we were given, and the Origin our own. Every user of this machine reaches its ports, too: what changes
something needs a token everywhere, what only reads needs one beyond this machine.
"""

import hmac
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from waltap.offsets.durable_file import replace_durably

__all__ = ["RequestAccess", "is_loopback", "kept_token"]

OWN = frozenset({"same-origin", "none"})
"""What a browser says of requests that our page, or its user, makes."""
READS = frozenset({"GET", "HEAD"})
"""Methods that change nothing."""
LEAST: Final = 8
"""Characters of a token."""
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    """Tell whether ``host`` is this machine alone."""
    if host in LOOPBACK_NAMES:
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def kept_token(path: Path) -> str:
    """Return the token in the file ``path``, which only its owner reads; a new one where there is none.

    Raises: OSError.
    """
    with suppress(FileNotFoundError):
        kept = path.read_text("ascii", "replace").strip()
        if len(kept) >= LEAST:
            return kept
    token = secrets.token_urlsafe()
    replace_durably(path, f"{token}\n".encode())
    return token


class RequestAccess:
    """Judges requests. ``host`` is where we listen. A request that changes something must have what
    ``token`` returns,
    and so must every other but those for health, unless ``open_reads``. ``place`` is where it is kept."""

    def __init__(
        self, host: str, token: Callable[[], str], *, open_reads: bool, place: str = ""
    ) -> None:
        self._local, self._token, self._open_reads = is_loopback(host), token, open_reads
        self._place = f"; it is in {place}" if place else ""

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
        if method in READS and (open_to_all or self._open_reads):
            return None
        given = headers.get("authorization", "").removeprefix("Bearer ") or token or ""
        if given and hmac.compare_digest(given.encode(), self._token().encode()):
            return None
        text = f"a token is needed: Authorization: Bearer TOKEN, or ?token=TOKEN{self._place}"
        return 401, text


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
