"""What events say of a table whose schema changed after the change was committed and before it was
decoded: the wire is the truth of its moment, the catalogue and the memory add what it lacks.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from waltap_sinks.changelog import ChangeLog

from tests.rigs.pipeline import Pipeline
from tests.servers.postgres import Database

DECODERS = {
    "pgoutput": {},
    "binary": {"pgoutput.binary": "true"},
    "streaming": {"pgoutput.streaming": "on"},
    "two-phase": {"pgoutput.two_phase": "true"},
    "wal2json": {"plugin.name": "wal2json"},
    "wal2json-1": {"plugin.name": "wal2json", "wal2json.format-version": "1"},
    "decoderbufs": {"plugin.name": "decoderbufs"},
}
"""Settings of every decoder and mode."""


Key = dict[str, Any] | None


class Rig:
    """One pipeline into JSON lines."""

    def __init__(self, database: Database, folder: Path, **settings: Any) -> None:
        self.out = folder / "out"
        self.pipeline = Pipeline(
            database,
            folder,
            {
                "sink.type": "jsonl",
                "sink.path": str(self.out),
                "topic.prefix": "x",
                "key.converter.schemas.enable": "true",
                "value.converter.schemas.enable": "true",
                **settings,
            },
        )

    def catch_up(self) -> None:
        self.pipeline.catch_up()

    def records(self, table: str) -> list[dict[str, Any]]:
        """Return the records of a table, tombstones left out."""
        with self.out.open() as lines:
            found = [json.loads(line) for line in lines]
        return [r for r in found if r["topic"] == f"x.public.{table}" and r["value"] is not None]

    def keys(self, table: str) -> list[tuple[str, Key]]:
        """Return (operation, key) of each record."""
        return [
            (r["value"]["payload"]["op"], r["key"] and r["key"]["payload"])
            for r in self.records(table)
        ]

    def required(self, table: str) -> list[list[str]]:
        """Return, per record, the fields of a row that are not optional."""
        return [
            [f["field"] for f in r["value"]["schema"]["fields"][1]["fields"] if not f["optional"]]
            for r in self.records(table)
        ]


class LogRig:
    """One pipeline into a change log."""

    def __init__(self, database: Database, folder: Path, **settings: Any) -> None:
        self.out = folder / "log"
        self.pipeline = Pipeline(
            database, folder, {"sink.type": "changelog", "sink.path": str(self.out), **settings}
        )

    def catch_up(self) -> None:
        self.pipeline.catch_up()

    def entries(self, table: str) -> list[tuple[tuple[str, ...], dict[str, int]]]:
        """Return (key, operations) for each key that a table had; how many manifests there are depends
        on time."""
        found: dict[tuple[str, ...], Counter[str]] = {}
        for manifest in ChangeLog(str(self.out)).manifests():
            for entry in manifest.tables:
                if entry.table == table and entry.rows:
                    found.setdefault(entry.key, Counter()).update(entry.operations)
        return [(key, dict(counted)) for key, counted in found.items()]


@pytest.fixture(params=list(DECODERS))
def decoder(request: pytest.FixtureRequest) -> dict[str, str]:
    return DECODERS[request.param]


LATER = {
    "renamed": "ALTER TABLE t RENAME TO s",
    "dropped": "DROP TABLE t",
    "made anew": "DROP TABLE t; CREATE TABLE t (other text PRIMARY KEY)",
    "moved": "CREATE SCHEMA away; ALTER TABLE t SET SCHEMA away",
    "swapped": "CREATE TABLE green (v text PRIMARY KEY, id int); ALTER TABLE t RENAME TO blue;"
    " ALTER TABLE green RENAME TO t",
    "key dropped": "ALTER TABLE t DROP CONSTRAINT t_pkey",
    "key changed": "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (v)",
    "key renamed": "ALTER TABLE t RENAME id TO number",
    "key retyped": "ALTER TABLE t ALTER id TYPE bigint",
    "key column dropped": "ALTER TABLE t DROP id",
    "identity set": "ALTER TABLE t REPLICA IDENTITY NOTHING",
}
"""What happens to a table after its changes were committed, and before they are decoded."""

IDENTITIES = {
    "default": "",
    "full": "ALTER TABLE t REPLICA IDENTITY FULL;",
    "index": "ALTER TABLE t REPLICA IDENTITY USING INDEX t_pkey;",
}


@pytest.mark.parametrize("identity", list(IDENTITIES))
@pytest.mark.parametrize("later", list(LATER))
def test_the_key_of_a_change_is_that_of_its_moment(
    database: Database, tmp_path: Path, decoder: dict[str, str], later: str, identity: str
) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text NOT NULL DEFAULT 'd');" + IDENTITIES[identity]
    )
    rig = Rig(database, tmp_path, **decoder)
    rig.catch_up()
    database.execute("INSERT INTO t VALUES (1, 'a'); INSERT INTO t VALUES (5, 'b')")
    database.execute("UPDATE t SET id = 2 WHERE id = 1")
    database.execute("DELETE FROM t WHERE id = 5")
    database.execute(LATER[later])
    rig.catch_up()
    assert rig.keys("t") == [
        ("c", {"id": 1}),
        ("c", {"id": 5}),
        ("d", {"id": 1}),
        ("c", {"id": 2}),
        ("d", {"id": 5}),
    ]


@pytest.mark.parametrize("identity", list(IDENTITIES))
@pytest.mark.parametrize("later", ["dropped", "swapped", "key dropped", "key changed"])
@pytest.mark.parametrize("plugin", ["pgoutput", "wal2json", "decoderbufs"])
def test_the_change_log_has_the_key_of_the_moment(
    database: Database, tmp_path: Path, plugin: str, later: str, identity: str
) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text NOT NULL DEFAULT 'd');" + IDENTITIES[identity]
    )
    rig = LogRig(database, tmp_path, **DECODERS[plugin])
    rig.catch_up()
    database.execute("INSERT INTO t VALUES (1, 'a'); INSERT INTO t VALUES (5, 'b')")
    database.execute("UPDATE t SET id = 2 WHERE id = 1")
    database.execute("DELETE FROM t WHERE id = 5")
    database.execute(LATER[later])
    rig.catch_up()
    assert rig.entries("t") == [(("id",), {"c": 3, "d": 2})]


TABLES = 100


def test_a_table_made_and_filled_in_one_transaction_is_described_as_it_made_it(
    database: Database, tmp_path: Path, decoder: dict[str, str]
) -> None:
    """The server decodes a transaction as soon as its commit is written, which is before others see
    what it did; nothing pauses between the transactions here."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    rig = Rig(database, tmp_path, **{"publication.autocreate.mode": "all_tables"}, **decoder)
    with rig.pipeline.running() as run, database.connect(autocommit=True) as connection:
        for n in range(TABLES):
            full = f"ALTER TABLE m{n} REPLICA IDENTITY FULL;" if n % 2 else ""
            connection.execute(
                f"BEGIN; CREATE TABLE m{n} (id int PRIMARY KEY, v text NOT NULL DEFAULT 'd', w int);"
                f"{full} INSERT INTO m{n} VALUES (1, 'a'); COMMIT".encode()
            )
        run.until(lambda: f"x.public.m{TABLES - 1}" in rig.out.read_text(), "the last table")
    for n in range(TABLES):
        assert rig.keys(f"m{n}") == [("c", {"id": 1})], n
        assert rig.required(f"m{n}") == [["id", "v"]], n
