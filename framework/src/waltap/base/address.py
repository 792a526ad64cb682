"""Check addresses in properties."""

from urllib.parse import urlsplit

__all__ = ["whole_address"]


def whole_address(text: str | None) -> str | None:
    """Return an address unchanged if its parts can be read.

    Raises: ValueError, which quotes no part of it: the address may contain a password.
    """
    try:
        # A special character in a password splits the address at the wrong place.
        port = urlsplit(text or "").port
    except ValueError:
        port = 0
    if port == 0:
        what = "cannot be read; characters such as / ? # @ : in a password are written %2F %3F …"
        raise ValueError(what)
    return text
