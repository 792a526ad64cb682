"""Settings of every PostgreSQL session, at the source or a target.

A role or a database may have other settings (``ALTER ROLE … SET``). A schema that other users may write
to can contain functions and operators that match a call better than the built-in ones, and they run with
the caller's rights. So each session begins with `PINNED`, before any name is resolved: the framework's
queries find ``pg_catalog`` alone. SQL of a profile runs under its user's own path.

Source: PostgreSQL manual, "Function Type Resolution", "Writing SECURITY DEFINER Functions Safely" and
"Client Connection Defaults".
"""

from collections.abc import Mapping
from typing import Final

from waltap.base.text import sql_text

PINNED: Final = "SET search_path = pg_catalog, pg_temp"
"""Temporary objects come last: outside the path they would come first."""

USERS_PATH: Final = "SET LOCAL search_path TO DEFAULT"
"""Before SQL of a profile, in a transaction: the path of the role or the database."""

PINNED_AGAIN: Final = "SET LOCAL search_path = pg_catalog, pg_temp"
"""After SQL of a profile, in a transaction."""

SETTINGS: Final = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO,MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "3",
    "lc_monetary": "C",
    "array_nulls": "on",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "quote_all_identifiers": "off",
    "default_transaction_isolation": "read\\ committed",
    "default_transaction_read_only": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
"""Settings of a start packet for the text form of values and the limits of a session. So a row has the
same text in a snapshot and in the stream. A role that is read-only by default may still create a
publication."""

LIMITS: Final = {"idle_session_timeout": 14_00_00, "transaction_timeout": 17_00_00}
"""More limits of a session, and the first version that has them: an older server refuses them."""

DEAD_LINK: Final = {
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""Parameters of libpq. A link is dead after a minute without a sign from the other kernel; the system's
own values are hours. A busy server still answers at this level, however long it works."""


def startup_options() -> str:
    """Return `SETTINGS` in the form of a start packet's ``options``."""
    return " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())


def beginning(
    version: int, *, settings: Mapping[str, str] = SETTINGS, more: Mapping[str, str] | None = None
) -> str:
    """Return the first statements of a session.

    ``version`` is ``server_version_num``. ``settings`` is empty if the start packet had them; ``more`` are
    this session's additional settings.
    """
    # A start packet needs a backslash before a blank; a statement does not.
    wanted = {name: value.replace("\\", "") for name, value in settings.items()} | dict(more or {})
    wanted |= {name: "0" for name, since in LIMITS.items() if version >= since}
    return "; ".join([PINNED, *(f"SET {name} = {_written(name, wanted[name])}" for name in wanted)])


def _written(name: str, value: str) -> str:
    if name == "DateStyle":  # a list; quotes would turn it into one name
        return value
    return sql_text(value)
