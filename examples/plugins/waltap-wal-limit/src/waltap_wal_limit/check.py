"""A check: what a replication slot may keep of the WAL while nobody reads it."""

from waltap.plugins.check_context import CheckContext
from waltap.ports.source import PreflightCheck

NAME = "wal-limit"


def check(context: CheckContext) -> list[PreflightCheck]:
    """Look, and change nothing: `waltap doctor` prints what is found, a start obeys it."""
    rows = context.query("SELECT setting FROM pg_settings WHERE name = 'max_slot_wal_keep_size'")
    return [verdict(str(rows[0][0]) if rows else None)]


def verdict(setting: str | None) -> PreflightCheck:
    """Check a value of the server; None where it has none (before PostgreSQL 13)."""
    if setting is None or setting == "-1":
        return PreflightCheck(
            name=NAME,
            verdict="warning",
            found="a stopped pipeline may fill the server's disk with WAL",
            remedy="ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf();",
        )
    return PreflightCheck(name=NAME, verdict="ok", found=f"a slot keeps at most {setting} MB")
