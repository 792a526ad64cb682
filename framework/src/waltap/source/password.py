"""Passwords that plugins give, one for each connection that is made."""

from collections.abc import Callable

from waltap.errors import ConnectionLost

__all__ = ["Password", "PasswordUnavailable"]

Password = Callable[[str, int, str, str], str | None]
"""(host, port, user, database) → the password of the next connection; None: the profile's.
Raises: WaltapError."""


class PasswordUnavailable(ConnectionLost):
    """A plugin that gives passwords had none for this connection."""

    code = "WT-2023"
    remedy = (
        "waltap tries again by itself; if this lasts, ask the service that {distribution} asks."
    )
