"""Get passwords from plugins, one for each connection."""

from collections.abc import Callable

from waltap.errors import ConnectionLost

Password = Callable[[str, int, str, str], str | None]
"""(host, port, user, database) → the password of the next connection; None: the profile's.
Raises: WaltapError."""


class PasswordUnavailable(ConnectionLost):
    """The password plugin had no password for this connection."""

    code = "WT-2023"
    remedy = (
        "waltap tries again by itself; if this lasts, ask the service that {distribution} asks."
    )


class PasswordFileUnreadable(ConnectionLost):
    """The password file no longer exists or cannot be read."""

    code = "WT-2031"
    remedy = (
        "waltap reads it again at the next try; if this lasts, look whether the file is there for the "
        "user that waltap runs as."
    )
