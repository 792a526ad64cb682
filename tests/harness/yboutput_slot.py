"""A slot of the output plugin yboutput on a real server, and the frames it sends.

The plugin is the tests' double, built from published sources; no YugabyteDB server was run.
"""

import re
from typing import Any

from tests.harness.servers.postgres import Database

from waltap.changes.decode.decoder import Frame
from waltap_testing.recording import frames_of_slot


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


def identity(database: Database, table: str, name: str) -> None:
    """Give ``table`` the replica identity that the double emulates."""
    database.execute(f"SELECT yb_replica_identity('{table}', '{name}')")


def oid(database: Database, table: str) -> int:
    return int(database.execute(f"SELECT '{table}'::regclass::oid::int8")[0][0])


def spaced(text: str) -> bytes:
    return bytes.fromhex(re.sub(r"\s+", "", text))
