"""Get passwords from plugins, one for each connection."""

from collections.abc import Callable

from waltap.errors import ConnectionLost

Password = Callable[[str, int, str, str], str | None]
"""(host, port, user, database) → the password of the next connection; None: the profile's.
Raises: WaltapError."""


PasswordUnavailable = ConnectionLost.define(
    "PasswordUnavailable",
    "WT-2023",
    "The password plugin had no password for this connection.",
    "If this lasts, ask the service that {distribution} asks.",
)
PasswordFileUnreadable = ConnectionLost.define(
    "PasswordFileUnreadable",
    "WT-2031",
    "The password file no longer exists or cannot be read.",
    "waltap reads it again at the next try; if this lasts, look whether the file is there for the "
    "user that waltap runs as.",
)
