"""Offsets in an SQLite database, one row per pipeline. Replace SQLite by your database.

The rules that the tests check: `store` returns when the offset is durable and not before; a reader
finds the old or the new one at any moment; only OffsetError comes out.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from waltap.config import Properties, declare
from waltap.errors import OffsetError
from waltap.ports.offsets import Offset, OffsetStore, decoded, encoded

TABLE = "CREATE TABLE IF NOT EXISTS offset (pipeline TEXT PRIMARY KEY, offset BLOB NOT NULL)"


class SqliteUnusable(OffsetError):
    """The database cannot be used, or holds something that is no offset."""

    code = "SQLITE-6001"
    remedy = "Look at {path}; `waltap offsets show FILE` prints what is stored."


class SqliteProperties(Properties):
    """Where the database is."""

    path: Path | None = declare(
        "sqlite.path",
        default=None,
        summary="Database file; default: offset.sqlite in the pipeline's state folder.",
    )


class SqliteOffsetStore(OffsetStore):
    """One row per pipeline."""

    def __init__(self, properties: SqliteProperties, home: str) -> None:
        self._path = properties.path or Path(home) / "offset.sqlite"
        self._pipeline = home

    def load(self) -> Offset | None:
        """Return the stored offset, None when there is none."""
        with self._database() as database:
            query = "SELECT offset FROM offset WHERE pipeline = ?"
            row = database.execute(query, [self._pipeline]).fetchone()
        if row is None:
            return None
        try:
            return decoded(row[0])
        except (ValueError, TypeError) as cause:
            raise SqliteUnusable(f"this is no offset: {cause}", path=self._path) from cause

    def store(self, offset: Offset) -> None:
        """Replace the stored offset in one transaction."""
        with self._database() as database, database:
            query = "INSERT OR REPLACE INTO offset (pipeline, offset) VALUES (?, ?)"
            database.execute(query, [self._pipeline, encoded(offset)])

    def clear(self) -> None:
        """Forget the stored offset."""
        with self._database() as database, database:
            database.execute("DELETE FROM offset WHERE pipeline = ?", [self._pipeline])

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._path, timeout=60)) as database:
                database.execute("PRAGMA synchronous = FULL")
                database.execute(TABLE)
                yield database
        except (sqlite3.Error, OSError) as cause:
            raise SqliteUnusable(f"{type(cause).__name__}: {cause}", path=self._path) from cause
