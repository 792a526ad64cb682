"""Check addresses in properties, and show them without secrets."""

from urllib.parse import urlsplit


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


def host_of(url: str) -> str:
    """Return the scheme and the host of an address.

    Messages leave the rest out: user, path and query may have secrets.
    """
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
