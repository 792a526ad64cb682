"""What a name means changes under decoders whose wire only names tables: a table made anew with the same
columns, a key dropped, a materialized view in a table's place.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.json_lines import DECODERS
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database

from waltap_sinks.changelog import ChangeLog

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"

Entry = tuple[int, tuple[str, ...], int]


class Rig:
    """A pipeline into a change log, fed as it goes (live) or all at once at the end (lag)."""

    def __init__(self, database: Database, folder: Path, plugin: str, mode: str) -> None:
        self._database, self._live = database, mode == "live"
        self.out = folder / "log"
        self.pipeline = PipelineRig(
            database,
            folder,
            {
                "sink.type": "changelog",
                "sink.path": str(self.out),
                "publication.autocreate.mode": "all_tables",
                **DECODERS[plugin],
            },
        )
        self.pipeline.catch_up()
        self._written = 0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        if not self._live:
            yield
            self.pipeline.catch_up()
            return
        with self.pipeline.running() as self._run:
            yield

    def ddl(self, *statements: str) -> None:
        self._database.run(*statements)

    def rows(self, *statements: str, wanted: int = 1) -> None:
        """Write, in one transaction, ``wanted`` rows of t and other; live, wait for them."""
        self._database.execute(";".join(statements))
        self._written += wanted
        if self._live:
            self._run.until(lambda: self.count() >= self._written, f"row {self._written}")

    def oid(self) -> int:
        ((oid,),) = self._database.execute("SELECT 't'::regclass::oid::int8")
        return int(oid)

    def count(self) -> int:
        return sum(entry[2] for entry in self.entries("t", "other"))

    def entries(self, *names: str) -> list[Entry]:
        """Return OID, key and number of rows of tables (of t), runs of the same put together."""
        found: list[Entry] = []
        for manifest in ChangeLog(str(self.out)).manifests():
            for table in manifest.tables:
                if table.table in (names or ("t",)) and table.rows:
                    before = 0
                    if found and found[-1][:2] == (table.oid, table.key):
                        before = found.pop()[2]
                    found.append((table.oid, table.key, before + table.rows))
        return found

    def unsent(self, name: str) -> set[str]:
        tables = (t for m in ChangeLog(str(self.out)).manifests() for t in m.tables)
        return {column for table in tables if table.table == name for column in table.unchanged}


@pytest.fixture(params=["live", "lag"])
def mode(request) -> str:
    return str(request.param)


@pytest.fixture(params=list(DECODERS))
def rig(database, tmp_path, request, mode) -> Rig:
    database.execute(TABLE)
    database.execute("CREATE TABLE other (id int PRIMARY KEY)")
    return Rig(database, tmp_path, request.param, mode)


ADDED = "INSERT INTO t VALUES (1, 'a')"
CHANGES = (
    (2, "INSERT INTO t VALUES (1, 'a'), (2, 'b')"), (0, "CREATE TABLE third (id int)"), (1, "UPDATE t SET v = 'e' WHERE id = 1")
)  # fmt: skip
LATER = (1, ADDED), (0, "CREATE TABLE another (id int)"), (1, "INSERT INTO t VALUES (2, 'd')")
MADE_ANEW = {
    "with the same columns": ([*CHANGES, (0, f"DROP TABLE t;{TABLE}"), *LATER], 3, (2,)),
    "and filled in one transaction": ([(1, ADDED), (2, f"INSERT INTO other VALUES (1);DROP TABLE t;{TABLE};{ADDED}"), (1, "UPDATE t SET v = 'd'")], 1, (2,)),
    "and truncated first": ([(1, ADDED), (0, f"DROP TABLE t;{TABLE};TRUNCATE t"), (1, ADDED)], 1, (1, 2)),  # some plugins send the truncate
}  # fmt: skip
"""Statements, in a transaction of so many rows or each by itself; and changes before and after."""


@pytest.mark.parametrize("case", MADE_ANEW)
def test_a_table_made_anew_is_another(rig, case):
    statements, before, after = MADE_ANEW[case]
    first = rig.oid()
    with rig.running():
        for wanted, sql in statements:
            if wanted:
                rig.rows(sql, wanted=wanted)
            else:
                rig.ddl(*sql.split(";"))
    *old, (oid, key, rows) = rig.entries()
    assert old == [(first, ("id",), before)]
    assert (oid, key, rows in after) == (rig.oid(), ("id",), True)


@pytest.mark.parametrize("saved", [False, True], ids=["plain", "savepoint"])
@pytest.mark.parametrize("mode", ["lag"], indirect=True)
def test_it_is_another_too_beside_an_open_transaction(rig, server, saved):
    """It holds back the horizon that would show the table's age."""
    first = rig.oid()
    with server.connect(autocommit=False) as other, rig.running():
        other.execute("SELECT txid_current()")
        rig.rows("INSERT INTO t VALUES (1, 'a')")
        rig.ddl("DROP TABLE t")
        made = (TABLE, "INSERT INTO t VALUES (1, 'b')")
        rig.rows(*(("BEGIN", "SAVEPOINT s", *made, "RELEASE s", "COMMIT") if saved else made))
        second = rig.oid()
        rig.rows("INSERT INTO t VALUES (2, 'c')")
    assert rig.entries() == [(first, ("id",), 1), (second, ("id",), 2)]


@pytest.mark.parametrize("mode", ["live"], indirect=True)
def test_a_table_renamed_into_the_place_of_another_and_altered_later_is_itself(rig):
    """Decoded after all of that: what altered the table last is not what gave it its name."""
    first = rig.oid()
    with rig.running():
        rig.rows("INSERT INTO t VALUES (1, 'a')")
    rig.ddl("CREATE TABLE f (id bigint PRIMARY KEY, x int)", "DROP TABLE t")
    rig.ddl("ALTER TABLE f RENAME TO t")
    second = rig.oid()
    rig.ddl("INSERT INTO t VALUES (5, 6)", "UPDATE t SET x = 7", "ALTER TABLE t ADD w int")
    rig.ddl("INSERT INTO t VALUES (6, 6)", "ALTER TABLE t REPLICA IDENTITY FULL")
    rig.pipeline.catch_up()
    assert rig.entries() == [(first, ("id",), 1), (second, ("id",), 3)]


def test_a_table_made_and_renamed_in_one_transaction_is_known_by_both_names(rig):
    made = (
        "CREATE TABLE first (n int, id int PRIMARY KEY)",
        "CREATE TABLE beside (id int PRIMARY KEY)",
    )
    with rig.running():
        renamed = *made, "INSERT INTO first VALUES (1, 2)", "ALTER TABLE first RENAME TO t"
        rig.rows("BEGIN", "DROP TABLE t", *renamed, "INSERT INTO t VALUES (2, 3)", "COMMIT")
        rig.rows("INSERT INTO other VALUES (1)")
    assert rig.entries("first") == [(rig.oid(), ("id",), 1)]
    assert rig.entries() == [(rig.oid(), ("id",), 1)]


def test_a_table_renamed_to_and_fro_is_itself_in_between(rig):
    """Decoded when the name in between is gone, with a value that the update did not send."""
    oid = rig.oid()
    with rig.running():
        rig.rows(
            "ALTER TABLE t ALTER v SET STORAGE EXTERNAL, ADD n int",
            "INSERT INTO t VALUES (1, repeat('x', 9000), 1)",
        )
        rig.ddl(
            "ALTER TABLE t RENAME TO between;UPDATE between SET n = 2;ALTER TABLE between RENAME TO t"
        )
        rig.rows("UPDATE t SET n = 3")
    assert rig.entries() == [(oid, ("id",), 2)]
    assert rig.entries("between") == [(oid, ("id",), 1)]
    assert rig.unsent("between") == {"v"}


def test_tables_whose_schemas_exchange_names_are_themselves(rig):
    first = rig.oid()
    rig.ddl("CREATE SCHEMA s", "CREATE TABLE s.t (id int PRIMARY KEY, v text)")
    rig.pipeline.catch_up()
    with rig.running():
        rig.rows("INSERT INTO t VALUES (1, 'a')")
        names = (("public", "x"), ("s", "public"), ("x", "s"))
        rig.ddl(";".join(f"ALTER SCHEMA {old} RENAME TO {new}" for old, new in names))
        rig.rows("INSERT INTO t VALUES (2, 'b')")
    assert rig.entries() == [(first, ("id",), 1), (rig.oid(), ("id",), 1)]
