"""Passwords that plugins give, one for each connection that is made."""

from collections.abc import Callable

from waltap.errors import ConnectionLost

__all__ = ["Password", "PasswordFileUnreadable", "PasswordUnavailable"]

Password = Callable[[str, int, str, str], str | None]
"""(host, port, user, database) → the password of the next connection; None: the profile's.
Raises: WaltapError."""


class PasswordUnavailable(ConnectionLost):
    """A plugin that gives passwords had none for this connection."""

    code = "WT-2023"
    remedy = (
        "waltap tries again by itself; if this lasts, ask the service that {distribution} asks."
    )


class PasswordFileUnreadable(ConnectionLost):
    """The file that holds the password is not there, or cannot be read, any more."""

    code = "WT-2031"
    remedy = (
        "waltap reads it again at the next try; if this lasts, look whether the file is there for the "
        "user that waltap runs as."
    )
