"""Addresses that properties give."""

from urllib.parse import urlsplit

__all__ = ["whole_address"]


def whole_address(text: str | None) -> str | None:
    """Return an address as it is. Raises: ValueError, which quotes nothing of it, where it is torn."""
    try:
        port = urlsplit(text or "").port
    except ValueError:
        port = 0
    if port == 0:
        what = "cannot be read; characters such as / ? # @ : in a password are written %2F %3F …"
        raise ValueError(what)
    return text
