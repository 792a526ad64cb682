"""Every decoder on a real server: values that decoderbufs leaves to us to print, and tables that are altered in
mid-stream, where decoders without Relation messages conclude what pgoutput is reported. What they say of one workload:
recorded sessions, tests/unit/decoders.

Of altered tables are compared the names of columns in their order, values, and the kind of the old tuple. An insert
shows no replica identity and a delete by key no other columns: there the plugins may know less.
"""

import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from tests.harness.servers.postgres import Database

from waltap.changes.decode import (
    ABSENT,
    Decoder,
    DecoderContext,
    Delete,
    Insert,
    ServerInfo,
    Update,
)
from waltap.changes.decode.value_text import float4_text, float8_text
from waltap_decoders.decoderbufs.datums import date_text, time_text, timestamp_text
from waltap_decoders.plugin import register_decoders
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.properties import PostgresProperties

SPECS = {spec.name: spec for spec in register_decoders()}
VARIANTS: dict[str, tuple[str, Mapping[str, object]]] = {
    "pgoutput": ("pgoutput", {}),
    "wal2json 2": ("wal2json", {}),
    "wal2json 1": ("wal2json", {"wal2json.format-version": "1"}),
    "wal2json chunks": ("wal2json_streaming", SPECS["wal2json_streaming"].forced_options),
    "decoderbufs": ("decoderbufs", {}),
}
"""Name → decoder and its options."""

PINNED = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "3",
    "lc_monetary": "C",
}


# --- values ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", ["float8", "float4"])
def test_floats_of_decoderbufs_are_printed_like_the_server_does(database, values):
    """Thousands of numbers of all sizes: our digits against the server's own."""
    ours = float8_text if values == "float8" else float4_text
    with database.connect() as connection:
        connection.execute("SET extra_float_digits = 3")
        rows = connection.execute(
            f"""SELECT v, v::text FROM (
              SELECT (random() * 10 ^ (g % 70 - 35))::{values} AS v FROM generate_series(1, 2000) g
              UNION ALL SELECT (g * 10.0 ^ (g % 30 - 15))::{values} FROM generate_series(-500, 500) g
              UNION ALL SELECT (2.0 ^ (g % 120 - 60))::{values} FROM generate_series(1, 120) g
            ) numbers""",
            binary=True,
        ).fetchall()
    assert [text for _, text in rows] == [ours(value) for value, _ in rows]


def test_dates_and_times_of_decoderbufs_are_printed_like_the_server_does(database):
    with database.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        dates = connection.execute(
            "SELECT d - '1970-01-01'::date, d::text FROM ("
            " SELECT '4714-11-24 BC'::date + g * 700001 FROM generate_series(0, 3065) g) x(d)"
        ).fetchall()
        stamps = connection.execute(
            "SELECT (extract(epoch FROM s) * 1000000)::int8, s::text, s::time::text FROM ("
            " SELECT '4714-11-24 00:00:00 BC'::timestamp + g * interval '40003 days 1.234567 s'"
            " FROM generate_series(0, 2600) g) x(s)"
        ).fetchall()
    assert [text for _, text in dates] == [date_text(days) for days, _ in dates]
    assert [row[1] for row in stamps] == [timestamp_text(micros) for micros, _, _ in stamps]
    assert [row[2] for row in stamps] == [
        time_text(micros % 86_400_000_000) for micros, _, _ in stamps
    ]


# --- tables that are altered in mid-stream ---------------------------------------------------------------

OTHERS = ["wal2json 2", "wal2json 1", "wal2json chunks", "decoderbufs"]
ALTERED = (
    "CREATE TABLE t (id int PRIMARY KEY, a int, b text, c text NOT NULL DEFAULT 'd')",
    "ALTER TABLE t ALTER b SET STORAGE EXTERNAL, ALTER c SET STORAGE EXTERNAL",
    "CREATE PUBLICATION p FOR ALL TABLES",
)
LONG = "repeat('long', 2000)"

Row = tuple[str, str, dict[str, Any], dict[str, Any], str]


class Streams:
    """A database with a slot for each decoder, each read when asked for."""

    def __init__(self, database: Database) -> None:
        self.connection = database.connect()
        self.decoders: dict[str, Decoder] = {}
        self._names = {name: f"{database.name}_{n}" for n, name in enumerate(VARIANTS)}
        for name, value in PINNED.items():
            self.connection.execute("SELECT set_config(%s, %s, false)", [name, value])
        self.run(*ALTERED)
        for name, slot in self._names.items():
            plugin = SPECS[VARIANTS[name][0]].output_plugin
            self.run(f"SELECT pg_create_logical_replication_slot('{slot}', '{plugin}')")
        properties = PostgresProperties.model_validate({"database.dbname": database.name})
        self._catalogue = PostgresCatalogue(self.connection, properties)

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.connection.execute(statement.encode())

    def restart(self) -> None:
        self.decoders.clear()

    def rows(self, variant: str) -> list[Row]:
        decoder = self.decoders.setdefault(variant, self._decoder(variant))
        messages = decoder.feed(self._frames(variant, decoder))
        return [reported(m) for m in messages if isinstance(m, Insert | Update | Delete)]

    def _decoder(self, name: str) -> Decoder:
        decoder, options = VARIANTS[name]
        return SPECS[decoder].factory(
            DecoderContext(
                server=ServerInfo(version_num=self.connection.info.server_version),
                catalogue=self._catalogue,
                publications=("p",),
                options=options,
            )
        )

    def _frames(self, name: str, decoder: Decoder) -> list[tuple[int, bytes]]:
        asked = [text for pair in decoder.start_options().items() for text in pair]
        rows = self.connection.execute(
            "SELECT (lsn - '0/0')::int8, data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL"
            + ", %s" * len(asked)
            + ")",
            [self._names[name], *asked],
        )
        return [(int(lsn), bytes(data)) for lsn, data in rows.fetchall()]

    def agreed(self) -> list[Row]:
        """Return what pgoutput shows since the last call; the others must show the same."""
        wanted = self.rows("pgoutput")
        for variant in OTHERS:
            assert [plain(row) for row in self.rows(variant)] == [plain(r) for r in wanted], variant
        return wanted


def reported(message: Insert | Update | Delete) -> Row:
    names = [column.name for column in message.relation.columns]
    new = () if isinstance(message, Delete) else message.new
    old = () if isinstance(message, Insert) else message.old
    kind = "NONE" if isinstance(message, Insert) else message.old_kind.name
    pairs = dict(zip(names, new, strict=False)), dict(zip(names, old, strict=False))
    return type(message).__name__, message.relation.table, *pairs, kind


def plain(row: Row) -> tuple[Any, ...]:
    """Return what of a row is compared; dictionaries as lists, for the order of columns."""
    kind, table, new, old, old_kind = row
    seen = [pair for pair in old.items() if kind != "Delete" or pair[1] is not ABSENT]
    return kind, table, list(new.items()), seen, old_kind


@pytest.fixture
def streams(database) -> Iterator[Streams]:
    made = Streams(database)
    yield made
    made.connection.close()


def test_an_untouched_value_is_not_null_in_a_full_row(streams):
    """So a row that shows NULL for one is a key: decoderbufs lists all columns under either identity."""
    streams.run("ALTER TABLE t ALTER c DROP NOT NULL", "ALTER TABLE t REPLICA IDENTITY FULL")
    streams.run(f"INSERT INTO t VALUES (1, 1, {LONG})", "UPDATE t SET a = 2")
    streams.run("ALTER TABLE t REPLICA IDENTITY DEFAULT", "UPDATE t SET id = 2")
    streams.run("ALTER TABLE t REPLICA IDENTITY FULL", "UPDATE t SET id = 3")
    wanted = [(row[0], row[4]) for row in streams.rows("pgoutput")]
    assert wanted[-2:] == [("Update", "KEY"), ("Update", "FULL")]
    assert [(row[0], row[4]) for row in streams.rows("decoderbufs")] == wanted


@pytest.mark.parametrize("restarts", [False, True])
def test_a_full_row_of_nulls_alone_is_an_old_row(streams, restarts):
    """Format 1 of wal2json leaves NULL out of old rows: none of its columns are named then."""
    streams.run("CREATE TABLE k (a int, b text)", "ALTER TABLE k REPLICA IDENTITY FULL")
    nothing = {"a": None, "b": None}
    reported = []
    for statement in (
        "INSERT INTO k DEFAULT VALUES",
        "UPDATE k SET a = 1",
        "UPDATE k SET a = NULL",
        "DELETE FROM k",
    ):
        streams.run(statement)
        reported += streams.agreed()
        if restarts:
            streams.restart()
    assert [row[3:] for row in reported[1:]] == [
        (nothing, "FULL"),
        ({"a": "1", "b": None}, "FULL"),
        (nothing, "FULL"),
    ]
    streams.run("INSERT INTO k SELECT FROM generate_series(1, 2)", "UPDATE k SET b = 'x'")
    assert [row[3:] for row in streams.agreed()[2:]] == [(nothing, "FULL")] * 2


def test_rows_of_a_table_without_columns_are_rows(streams):
    streams.run("CREATE TABLE k ()", "ALTER TABLE k REPLICA IDENTITY FULL")
    streams.run("INSERT INTO k DEFAULT VALUES", "DELETE FROM k")
    for variant in ("pgoutput", "wal2json 2", "wal2json 1", "wal2json chunks"):
        assert [(row[0], row[4]) for row in streams.rows(variant)] == [
            ("Insert", "NONE"),
            ("Delete", "FULL"),
        ], variant
    assert streams.rows("decoderbufs")[0][::4] == ("Insert", "NONE")


def test_after_a_restart_what_came_later_than_a_missing_column_was_not_there(streams):
    streams.run(f"INSERT INTO t VALUES (1, 1, {LONG}, {LONG})")
    streams.agreed()
    streams.restart()
    streams.run("UPDATE t SET a = 2", "ALTER TABLE t ADD n int", "ALTER TABLE t ADD late text")
    (row,) = streams.agreed()
    assert list(row[2]) == ["id", "a", "b", "c"]


def test_what_is_no_table_brings_no_rows(streams):
    streams.run(
        "INSERT INTO t VALUES (1, 1, 'x')",
        "CREATE MATERIALIZED VIEW v AS SELECT * FROM t",
        "CREATE UNIQUE INDEX ON v (id)",
        "CREATE UNLOGGED TABLE unlogged (a int)",
        "CREATE TEMPORARY TABLE temporary (a int)",
    )
    streams.agreed()
    streams.run(
        "INSERT INTO t VALUES (2, 2, 'y')",
        "REFRESH MATERIALIZED VIEW CONCURRENTLY v",
        "DELETE FROM t WHERE id = 1",
        "REFRESH MATERIALIZED VIEW CONCURRENTLY v",
        "REFRESH MATERIALIZED VIEW v",
        "INSERT INTO unlogged VALUES (1)",
        "INSERT INTO temporary VALUES (1)",
        "CREATE TABLE made AS SELECT * FROM t",
        "ALTER TABLE made ALTER a TYPE bigint",
        "ALTER TABLE made ADD stamp timestamptz DEFAULT clock_timestamp()",
        "VACUUM FULL t",
        "CLUSTER t USING t_pkey",
    )
    assert [row[:2] for row in streams.agreed()] == [
        ("Insert", "t"),
        ("Delete", "t"),
        ("Insert", "made"),
    ]


@pytest.mark.parametrize("refresh", ["", "CONCURRENTLY"])
def test_a_materialized_view_made_under_a_savepoint_brings_no_rows(streams, refresh):
    """Its rule has the id of the subtransaction, which is later than that of the transaction."""
    view = "CREATE MATERIALIZED VIEW v AS SELECT id FROM t", "CREATE UNIQUE INDEX ON v (id)"
    change = f"REFRESH MATERIALIZED VIEW {refresh} v"
    saved = [text for each in (*view, change) for text in ("SAVEPOINT s", each, "RELEASE s")]
    rows = "INSERT INTO t VALUES (1, 1, 'x'), (2, 2, 'y')", "DELETE FROM t WHERE id = 1"
    streams.run("BEGIN", rows[0], *saved, rows[1], "SAVEPOINT s", change, "RELEASE s", "COMMIT")
    assert [row[:2] for row in streams.agreed()] == [("Insert", "t")] * 2 + [("Delete", "t")]
    streams.run("DROP MATERIALIZED VIEW v", "BEGIN", "UPDATE t SET a = 3", *saved, "COMMIT")
    assert [row[:2] for row in streams.agreed()] == [("Update", "t")]
    streams.run("UPDATE t SET a = 4", "INSERT INTO t VALUES (3, 3, 'z')", change)
    assert [row[:2] for row in streams.agreed()] == [("Update", "t"), ("Insert", "t")]


def test_a_view_made_while_the_transaction_ran_that_refreshes_it_brings_no_rows(streams, database):
    with database.connect() as other:
        streams.run("BEGIN", "INSERT INTO t VALUES (1, 1, 'x')")
        other.execute("CREATE MATERIALIZED VIEW v AS SELECT id FROM t")
        other.execute("CREATE UNIQUE INDEX ON v (id)")
        streams.run("REFRESH MATERIALIZED VIEW CONCURRENTLY v", "COMMIT")
    assert [row[:2] for row in streams.agreed()] == [("Insert", "t")]


@pytest.mark.parametrize("seed", range(4))
def test_random_ddl_is_followed(streams, seed):
    """Every statement is read at once, by sessions that go on; see the cases above for lag."""
    statements = _Statements(random.Random(seed))
    for _ in range(40):
        streams.run(statements.one())
        streams.agreed()


class _Statements:
    """Random DML and DDL on the table t; every row has a column that is not NULL beside its key."""

    def __init__(self, chooser: random.Random) -> None:
        self._random = chooser
        self._columns = {"a": "int", "b": "text", "c": "text"}
        self._rows: list[int] = []
        self._made = 0

    def one(self) -> str:
        """Return a statement; what there is nothing for becomes an insert, or another column."""
        kinds = ["insert"] * 5 + ["update"] * 10 + ["delete", "move"] * 2
        kinds += ["add", "add", "drop", "rename", "retype", "identity"]
        kind, choose = self._random.choice(kinds), self._random.choice
        self._made += 1
        free = [name for name in self._columns if name not in ("a", "c")]
        if kind == "identity":
            return f"ALTER TABLE t REPLICA IDENTITY {choose(['FULL', 'DEFAULT'])}"
        if kind in ("drop", "rename", "retype") and free:
            name, new = choose(free), f"n{self._made}"
            if kind == "drop":
                del self._columns[name]
                return f"ALTER TABLE t DROP {name}"
            if kind == "rename":
                self._columns = {new if k == name else k: v for k, v in self._columns.items()}
                return f"ALTER TABLE t RENAME {name} TO {new}"
            if self._columns[name] == "text":
                return f"ALTER TABLE t ALTER {name} TYPE {choose(['varchar', 'text'])}"
        if kind in ("add", "drop", "rename", "retype"):
            name, of = f"n{self._made}", choose(["int", "text"])
            self._columns[name] = of
            default = choose(["", f" DEFAULT '{len(self._columns)}'"])
            return f"ALTER TABLE t ADD {name} {of}{default}"
        if kind == "insert" or not self._rows:
            self._rows.append(self._made)
            values = ", ".join(map(self._value, self._columns))
            return f"INSERT INTO t (id, {', '.join(self._columns)}) VALUES ({self._made}, {values})"
        row = choose(self._rows)
        if kind == "update":
            column = choose(list(self._columns))
            return f"UPDATE t SET {column} = {self._value(column)} WHERE id = {row}"
        self._rows.remove(row)
        if kind == "delete":
            return f"DELETE FROM t WHERE id = {row}"
        self._rows.append(self._made)
        return f"UPDATE t SET id = {self._made} WHERE id = {row}"

    def _value(self, column: str) -> str:
        if self._columns[column] == "int":
            return self._random.choice(["NULL", "5", "77"])
        short = "'short'" if column == "c" else "NULL"
        return self._random.choice([short, "'s'", LONG, LONG.replace("long", "else")])
