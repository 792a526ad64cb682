"""The settings of every session of ours with a server of PostgreSQL's kind: source or target.

A role or a database may have others (``ALTER ROLE … SET``), and a schema that others may write to can hold
functions and operators that fit a call better than the built-in ones do: whoever calls them runs them with
his own rights. So each session begins with `PINNED`, before anything is looked up, and our queries find
``pg_catalog`` alone. SQL of a profile runs under the path that its user has.

Source: PostgreSQL manual, "Function Type Resolution", "Writing SECURITY DEFINER Functions Safely" and
"Client Connection Defaults".
"""

from collections.abc import Mapping
from typing import Final

__all__ = ["PINNED", "PINNED_AGAIN", "SETTINGS", "USERS_PATH", "beginning", "startup_options"]

PINNED: Final = "SET search_path = pg_catalog, pg_temp"
"""Temporary objects last: they would come first where they are not named."""

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
"""Settings that decide how a server prints and reads values, and whether a session may do its work, as
a start packet has them: a row of a snapshot and one of the stream cannot differ, and a role that
reads by default may well have the right to make a publication."""

IDLE: Final = "SET idle_session_timeout = 0"
"""Older servers refuse a session that names a setting they do not know."""
IDLE_VERSION: Final = 14_00_00


def startup_options() -> str:
    """Return `SETTINGS` as a start packet's ``options`` have them."""
    return " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())


def beginning(
    version: int, *, settings: Mapping[str, str] = SETTINGS, more: Mapping[str, str] | None = None
) -> str:
    """Return the statements that begin a session with a server of ``version`` (``server_version_num``).

    ``settings`` is empty where the start packet had them; ``more`` are what this session needs besides.
    """
    wanted = {name: value.replace("\\", "") for name, value in settings.items()} | dict(more or {})
    statements = [PINNED, *(f"SET {name} = {_written(name, wanted[name])}" for name in wanted)]
    if version >= IDLE_VERSION:
        statements.append(IDLE)
    return "; ".join(statements)


def _written(name: str, value: str) -> str:
    if name == "DateStyle":  # a list, whose quotes would make one name of it
        return value
    return "'" + value.replace("'", "''") + "'"
