"""A slot of the output plugin yboutput on a real server, and the frames it sends.

The plugin is the tests' double, built from published sources; no YugabyteDB server was run.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from psycopg import pq
from tests.harness.servers.postgres import Database

from waltap.changes.decode.decoder import Frame
from waltap_testing.recording import frames_of_slot

XLOG_HEADER_BYTES = 25  # w, dataStart, walEnd, sendTime


class Slot:
    """A slot with plugin ``yboutput`` and a publication ``p`` of all tables, made now."""

    def __init__(self, database: Database, publish: str = "FOR ALL TABLES") -> None:
        self.database = database
        self.name = f"yb_{database.name}"[:63]
        database.execute(f"CREATE PUBLICATION p {publish}")
        database.execute("SELECT pg_create_logical_replication_slot(%s, 'yboutput')", self.name)

    def frames(self, *, old_generation: bool = False, **options: str) -> tuple[Frame, ...]:
        """Return what the slot holds, without consuming it, as a new connection would get it."""
        asked = {"proto_version": "1", "publication_names": "p", **options}
        with self.database.connect() as connection:
            connection.execute(f"SET yboutput.old_generation = {old_generation}")
            return frames_of_slot(connection.execute, self.name, asked)

    def advance(self) -> None:
        self.database.execute(
            "SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", self.name
        )

    def payloads(self, kinds: str = "", **options: Any) -> list[bytes]:
        """Return the payloads of `frames` whose first letter is in ``kinds``; all without."""
        found = [payload for _, payload in self.frames(**options)]
        return [payload for payload in found if not kinds or chr(payload[0]) in kinds]

    def kinds(self, **options: Any) -> str:
        """Return the first letters of the payloads: the order of the messages."""
        return "".join(chr(payload[0]) for payload in self.payloads(**options))

    def streamed(self, commits: int, **options: str) -> list[tuple[int, int, bytes]]:
        """Return (dataStart, walEnd, payload) from START_REPLICATION, up to the n-th Commit."""
        asked = {"proto_version": "1", "publication_names": "p", **options}
        listed = ", ".join(f"{name} '{value}'" for name, value in asked.items())
        found: list[tuple[int, int, bytes]] = []
        with walsender(self.database) as pgconn:
            sql = f'START_REPLICATION SLOT "{self.name}" LOGICAL 0/0 ({listed})'
            result = pgconn.exec_(sql.encode())
            assert result.status == pq.ExecStatus.COPY_BOTH, result.error_message
            while commits:
                size, data = pgconn.get_copy_data(0)
                assert size > 0, pgconn.error_message
                if data[0] != ord("w"):
                    continue
                start, end = (int.from_bytes(data[at : at + 8], "big") for at in (1, 9))
                found.append((start, end, bytes(data[XLOG_HEADER_BYTES:])))
                commits -= data[XLOG_HEADER_BYTES] == ord("C")
        return found


@contextmanager
def walsender(database: Database) -> Iterator[pq.abc.PGconn]:
    """Open a replication connection; statements on it are run with ``exec_``."""
    pgconn = pq.PGconn.connect(f"{database.dsn}?replication=database".encode())
    assert pgconn.status == pq.ConnStatus.OK, pgconn.error_message
    try:
        yield pgconn
    finally:
        pgconn.finish()


def identity(database: Database, table: str, name: str) -> None:
    """Give ``table`` the replica identity that the double emulates."""
    database.execute(f"SELECT yb_replica_identity('{table}', '{name}')")


def oid(database: Database, table: str) -> int:
    return int(database.execute(f"SELECT '{table}'::regclass::oid::int8")[0][0])


def spaced(text: str) -> bytes:
    return bytes.fromhex(re.sub(r"\s+", "", text))
