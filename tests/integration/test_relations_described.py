"""What events say of a table whose schema changed after the change was committed and before it was decoded: the wire is the
truth of its moment, the catalogue and the memory add what it lacks; and what stays of relations that are gone."""

import gc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.harness.json_lines import DECODERS, Lines
from tests.harness.pipeline import PipelineRig, Run, until
from tests.harness.servers.postgres import Database

from waltap_sinks.changelog import ChangeLog

WAYS = DECODERS | {
    "streaming": {"pgoutput.streaming": "on"},
    "two-phase": {"pgoutput.two_phase": "true"},
}
"""Settings of every decoder and mode."""


Key = dict[str, Any] | None


class Log(PipelineRig):
    """A pipeline into a change log."""

    def __init__(self, database: Database, folder: Path, **settings: Any) -> None:
        self.out = folder / "log"
        own = {"sink.type": "changelog", "sink.path": str(self.out)}
        super().__init__(database, folder, own | settings)

    def entries(self, table: str) -> list[tuple[tuple[str, ...], dict[str, int]]]:
        """Return (key, operations) for each key that a table had; how many manifests there are depends
        on time."""
        found: dict[tuple[str, ...], Counter[str]] = {}
        for manifest in ChangeLog(str(self.out)).manifests():
            for entry in manifest.tables:
                if entry.table == table and entry.rows:
                    found.setdefault(entry.key, Counter()).update(entry.operations)
        return [(key, dict(counted)) for key, counted in found.items()]


LATER = {
    "renamed": "ALTER TABLE {t} RENAME TO {t}_s",
    "dropped": "DROP TABLE {t}",
    "made anew": "DROP TABLE {t}; CREATE TABLE {t} (other text PRIMARY KEY)",
    "moved": "ALTER TABLE {t} SET SCHEMA away",
    "swapped": "CREATE TABLE {t}_green (v text PRIMARY KEY, id int); ALTER TABLE {t} RENAME TO {t}_blue;"
    " ALTER TABLE {t}_green RENAME TO {t}",
    "key dropped": "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey",
    "key changed": "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey, ADD PRIMARY KEY (v)",
    "key renamed": "ALTER TABLE {t} RENAME id TO number",
    "key retyped": "ALTER TABLE {t} ALTER id TYPE bigint",
    "key column dropped": "ALTER TABLE {t} DROP id",
    "identity set": "ALTER TABLE {t} REPLICA IDENTITY NOTHING",
}
"""What happens to a table after its changes were committed, and before they are decoded."""

IDENTITIES = ("DEFAULT", "FULL", "USING INDEX {t}_pkey")
CASES = {f"t{n}": case for n, case in enumerate((later, i) for later in LATER for i in IDENTITIES)}


@pytest.mark.parametrize("sink", ["jsonl", "changelog"])
@pytest.mark.parametrize("plugin", DECODERS)
def test_the_key_of_a_change_is_that_of_its_moment(database, tmp_path, plugin, sink):
    """A table for each case; all are decoded behind what happened to them."""
    database.run(
        "CREATE SCHEMA away",
        *(
            f"CREATE TABLE {t} (id int PRIMARY KEY, v text NOT NULL DEFAULT 'd');"
            f"ALTER TABLE {t} REPLICA IDENTITY {identity.format(t=t)}"
            for t, (_, identity) in CASES.items()
        ),
    )
    rig = (Lines if sink == "jsonl" else Log)(database, tmp_path, **DECODERS[plugin])
    rig.catch_up()
    for t, (later, _) in CASES.items():
        database.run(
            f"INSERT INTO {t} VALUES (1, 'a'); INSERT INTO {t} VALUES (5, 'b')",
            f"UPDATE {t} SET id = 2 WHERE id = 1",
            f"DELETE FROM {t} WHERE id = 5",
            LATER[later].format(t=t),
        )
    rig.catch_up()
    moves: list[tuple[str, Key]] = [("d", {"id": 1}), ("c", {"id": 2}), ("d", {"id": 5})]
    for t, case in CASES.items():
        if isinstance(rig, Lines):
            assert rig.keys(t) == [("c", {"id": 1}), ("c", {"id": 5}), *moves], case
        else:
            assert rig.entries(t) == [(("id",), {"c": 3, "d": 2})], case


@pytest.mark.parametrize("decoder", WAYS)
def test_changes_under_a_name_that_is_not_captured_are_a_gap(database, tmp_path, decoder):
    """Plugins that name tables alone cannot tell which table it was; the next start sees that it was away."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    rig = Log(database, tmp_path, **WAYS[decoder], **{"table.include.list": "public.t"})
    rig.catch_up()
    rig.deliver("INSERT INTO t VALUES (3)")
    database.run(
        "ALTER TABLE t RENAME TO hidden",
        "DELETE FROM hidden WHERE id = 2",
        "ALTER TABLE hidden RENAME TO t",
    )
    rig.deliver("INSERT INTO t VALUES (2)")
    manifests = ChangeLog(str(rig.out)).manifests()
    assert any(entry.missed for manifest in manifests for entry in manifest.tables)


NUMBERED: dict[str, tuple[str, str, set[tuple[int, ...]]]] = {
    # a rewrite writes the rows of columns that were dropped long before, too
    "rewritten": (
        "CREATE TABLE {t} (id int PRIMARY KEY, a int, b int, c int, d text)",
        "ALTER TABLE {t} DROP b, DROP c; INSERT INTO {t} VALUES (1, 2, 'a');"
        "ALTER TABLE {t} ALTER a TYPE bigint; INSERT INTO {t} VALUES (3, 2, 'c')",
        {(1, 2, 5)},
    ),
    "young": (
        "",
        "CREATE TABLE {t} (id int PRIMARY KEY, v int, x int); INSERT INTO {t} VALUES (1, 1, 1);"
        "ALTER TABLE {t} DROP x; ALTER TABLE {t} ADD x int; INSERT INTO {t} VALUES (2, 2, 2)",
        {(1, 2, 3), (1, 2, 4)},
    ),
    "renamed": (
        "CREATE TABLE {t} (id int PRIMARY KEY, v int)",
        "ALTER TABLE {t} RENAME v TO w; INSERT INTO {t} VALUES (1, 1);"
        "ALTER TABLE {t} DROP w; ALTER TABLE {t} ADD v int; INSERT INTO {t} VALUES (2, 2)",
        {(1, 2), (1, 3)},
    ),
    "passing": (
        "CREATE TABLE {t} (id int PRIMARY KEY, v bigint)",
        "ALTER TABLE {t} DROP v; ALTER TABLE {t} ADD y date; INSERT INTO {t} VALUES (1, NULL);"
        "ALTER TABLE {t} DROP y; ALTER TABLE {t} ADD y int; INSERT INTO {t} VALUES (2, 2)",
        {(1, 3), (1, 4)},
    ),
    "exchanged": (
        "CREATE TABLE {t} (id int PRIMARY KEY, a int, b int, c int)",
        "ALTER TABLE {t} RENAME a TO d; ALTER TABLE {t} RENAME b TO a; ALTER TABLE {t} RENAME d TO b;"
        "INSERT INTO {t} VALUES (1, 1, 1); ALTER TABLE {t} DROP a; INSERT INTO {t} VALUES (2, 2)",
        {(1, 2, 3, 4), (1, 2, 4)},
    ),
    "in one transaction": (
        "CREATE TABLE {t} (id int PRIMARY KEY, y int, x float8)",
        "BEGIN; ALTER TABLE {t} RENAME y TO z; INSERT INTO {t} VALUES (1, 1, 1);"
        "ALTER TABLE {t} DROP x; ALTER TABLE {t} ADD n text; COMMIT; INSERT INTO {t} VALUES (2, 2, 'n')",
        {(1, 2, 3), (1, 2, 4)},
    ),
    # a start describes tables that are ahead of the stream
    "ahead": (
        "",
        "CREATE TABLE {t} (id int PRIMARY KEY, a date, b text); INSERT INTO {t} VALUES (1);"
        "ALTER TABLE {t} ADD c bigint; INSERT INTO {t} VALUES (2);"
        "ALTER TABLE {t} DROP b; INSERT INTO {t} VALUES (3);"
        "ALTER TABLE {t} RENAME c TO d; BEGIN; ALTER TABLE {t} DROP a; ALTER TABLE {t} ADD a text; COMMIT;"
        "INSERT INTO {t} VALUES (4); ALTER TABLE {t} DROP a",
        {(1, 2, 3), (1, 2, 3, 4), (1, 2, 4), (1, 4, 5)},
    ),
    # a rewrite in the drop's transaction could have written the dropped column's row
    "dropped beside": (
        "CREATE TABLE {t} (id int PRIMARY KEY, a float8, b float8)",
        "BEGIN; ALTER TABLE {t} DROP a; ALTER TABLE {t} ADD a float8; COMMIT; INSERT INTO {t} VALUES (1);"
        "BEGIN; ALTER TABLE {t} DROP a; ALTER TABLE {t} ADD c date; COMMIT; INSERT INTO {t} VALUES (2);"
        "ALTER TABLE {t} DROP c; ALTER TABLE {t} DROP b",
        {(1, 3, 4), (1, 3, 5)},
    ),
    "dropped": (
        "CREATE TABLE {t} (id int PRIMARY KEY, v int)",
        "ALTER TABLE {t} DROP v; ALTER TABLE {t} ADD v date; INSERT INTO {t} VALUES (1, NULL); DROP TABLE {t}",
        {(1, 1601)},
    ),
    "passed by": (
        "",
        "CREATE TABLE {t} (id int PRIMARY KEY, x int, y text); INSERT INTO {t} VALUES (1, 1, 'a');"
        "ALTER TABLE {t} RENAME x TO z; ALTER TABLE {t} RENAME y TO x; ALTER TABLE {t} RENAME z TO y;"
        "INSERT INTO {t} VALUES (2, 2, 'b'); ALTER TABLE {t} DROP x; ALTER TABLE {t} ADD x bool;"
        "INSERT INTO {t} VALUES (3, 3, true); DROP TABLE {t}",
        {(1, 2, 3), (1, 2, 1601)},
    ),
    "in the last transaction before a start": (
        "",
        "BEGIN; CREATE TABLE {t} (id int PRIMARY KEY, v text); INSERT INTO {t} VALUES (1, 'a');"
        "ALTER TABLE {t} ADD w int; ALTER TABLE {t} DROP v; INSERT INTO {t} VALUES (2, 3); COMMIT",
        {(1, 2), (1, 3)},
    ),
}
"""Statements before the pipeline, those while it is down, and the numbers of the columns of their changes."""


def test_columns_have_the_numbers_of_their_moment(database, tmp_path):
    tables = {f"t{n}": case for n, case in enumerate(NUMBERED)}
    for t, case in tables.items():
        database.run(*NUMBERED[case][0].format(t=t).split(";"))
    rig = Log(database, tmp_path, **{"publication.autocreate.mode": "all_tables"})
    rig.catch_up()
    for t, case in tables.items():
        database.run(*NUMBERED[case][1].format(t=t).split(";"))
    rig.catch_up()
    numbers: dict[str, set[tuple[int | None, ...]]] = {}
    for manifest in ChangeLog(str(rig.out)).manifests():
        for entry in manifest.tables:
            if entry.operations:
                found = tuple(column.number for column in entry.columns)
                numbers.setdefault(tables[entry.table], set()).add(found)
    assert numbers == {case: expected for case, (_, _, expected) in NUMBERED.items()}


@pytest.mark.parametrize("plugin", DECODERS)
def test_a_dropped_key_does_not_outlive_the_lag(database, tmp_path, plugin):
    """Under FULL nothing says whether a key was dropped before or after a change that is decoded late;
    for one that committed after the restart it is known."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    rig = Lines(database, tmp_path, **DECODERS[plugin])
    rig.catch_up()
    database.execute("INSERT INTO t VALUES (1, 'a')")
    database.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    with rig.running() as run:
        run.until(lambda: rig.out.exists() and len(rig.keys("t")) == 1, "the first row")
        database.execute("INSERT INTO t VALUES (1, 'b')")
        run.until(lambda: len(rig.keys("t")) == 2, "the second row")
    rig.catch_up()
    rig.deliver("INSERT INTO t VALUES (1, 'c')")
    assert rig.keys("t") == [("c", {"id": 1}), ("c", None), ("c", None)]


def await_sent(database: Database, slot: str) -> None:
    """Wait until the server has sent what is in the WAL by now."""
    ((lsn,),) = database.execute("SELECT pg_switch_wal()::text")
    query = (
        "SELECT r.sent_lsn >= %s::pg_lsn FROM pg_replication_slots s"
        " JOIN pg_stat_replication r ON r.pid = s.active_pid WHERE s.slot_name = %s"
    )
    until(lambda: database.execute(query, lsn, slot) == [(True,)], "what the server sends")


MAKING = (
    "CREATE TABLE m (b int, id int, v text NOT NULL DEFAULT 'd', PRIMARY KEY (id, b))",
    "INSERT INTO m SELECT 0, g, repeat('x', 200) FROM generate_series(1, 800) g",
    "UPDATE m SET id = 9999 WHERE id = 1",
    "DELETE FROM m WHERE id = 2",
)
CHANGING = (
    "ALTER TABLE t ADD c int NOT NULL DEFAULT 7",
    "INSERT INTO t SELECT g, repeat('x', 200) FROM generate_series(1, 400) g",
    "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (c, id)",
    "INSERT INTO t SELECT g, repeat('x', 200) FROM generate_series(401, 800) g",
)
STREAMED = {
    "pgoutput.streaming": "on",
    "driver.options": "-c logical_decoding_work_mem=64kB",
    "publication.autocreate.mode": "all_tables",
}


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_relations_of_a_transaction_in_progress_are_described_when_it_has_committed(
    database, tmp_path, identity, end
):
    """They are announced before anyone sees what the transaction did, or did not do in the end."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text NOT NULL DEFAULT 'd')")
    rig = Lines(database, tmp_path, **STREAMED)
    with rig.running() as run, database.connect(autocommit=True) as connection:
        connection.execute("BEGIN")
        for statement in (*MAKING[:1], f"ALTER TABLE m REPLICA IDENTITY {identity}", *MAKING[1:]):
            connection.execute(statement.encode())
        for statement in CHANGING:
            connection.execute(statement.encode())
        await_sent(database, rig.slot)
        connection.execute(end.encode())
        if end == "ROLLBACK":
            database.execute("INSERT INTO t VALUES (3000, 'y')")
        else:
            database.execute("INSERT INTO t VALUES (3000, 'y', 8)")
        run.until(lambda: '"id":3000' in rig.out.read_text(), "the last row")
    if end == "ROLLBACK":
        assert rig.keys("m") == []
        assert rig.keys("t") == [("c", {"id": 3000})]
        assert rig.required("t") == [["id", "v"]]
        return
    made = rig.keys("m")
    assert made[:800] == [("c", {"id": n, "b": 0}) for n in range(1, 801)]
    assert made[800:] == [
        ("d", {"id": 1, "b": 0}),
        ("c", {"id": 9999, "b": 0}),
        ("d", {"id": 2, "b": 0}),
    ]
    assert set(map(tuple, rig.required("m"))) == {("b", "id", "v")}
    changed = rig.keys("t")
    assert changed[:400] == [("c", {"id": n}) for n in range(1, 401)]
    assert changed[400:800] == [("c", {"c": 7, "id": n}) for n in range(401, 801)]
    assert changed[800:] == [("c", {"c": 8, "id": 3000})]
    assert set(map(tuple, rig.required("t"))) == {("id", "v", "c")}


@pytest.mark.parametrize("policy", ["commit", "prepare"])
def test_relations_of_a_prepared_transaction_are_described_when_it_is_handed_out(
    database, tmp_path, policy
):
    """With the policy ``prepare`` that is before others see what it did: the wire's word is there."""
    gid = database.name
    rig = Lines(
        database,
        tmp_path,
        **{
            "pgoutput.two_phase": "true",
            "two.phase.policy": policy,
            "publication.autocreate.mode": "all_tables",
        },
    )
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text NOT NULL DEFAULT 'd')")
    with rig.running() as run, database.connect(autocommit=True) as connection:
        connection.execute("BEGIN")
        for statement in (*MAKING, *CHANGING[:2]):
            connection.execute(statement.encode())
        connection.execute(f"PREPARE TRANSACTION '{gid}'".encode())
        try:
            await_sent(database, rig.slot)
            if policy == "prepare":
                run.until(lambda: rig.out.read_text().count('"op":"c"') == 1201, "its rows")
        finally:
            connection.execute(f"COMMIT PREPARED '{gid}'".encode())
        database.execute("INSERT INTO m VALUES (0, 3000, 'y'); INSERT INTO t VALUES (3000, 'y', 8)")
        run.until(lambda: rig.out.read_text().count('"id":3000') >= 4, "the last rows")
    made, changed = rig.keys("m"), rig.keys("t")
    assert {tuple(sorted(key or {})) for _, key in made} == {("b", "id")}
    assert {tuple(sorted(key or {})) for _, key in changed} == {("id",)}
    assert rig.required("m")[-1] == ["b", "id", "v"]
    assert rig.required("t")[-1] == ["id", "v", "c"]
    if policy == "commit":
        assert set(map(tuple, rig.required("m"))) == {("b", "id", "v")}
        assert set(map(tuple, rig.required("t"))) == {("id", "v", "c")}


@pytest.mark.parametrize("identity", ["DEFAULT", "USING INDEX u"])
def test_the_key_of_a_table_that_is_gone_is_never_null(database, tmp_path, identity):
    """Made, filled, dropped and made anew while the engine was down: only the wire knows of it."""
    rig = Lines(database, tmp_path)
    rig.catch_up()
    made = "CREATE TABLE t (id int PRIMARY KEY, v text, k int NOT NULL)"
    database.execute(
        f"{made}; CREATE UNIQUE INDEX u ON t (k); ALTER TABLE t REPLICA IDENTITY {identity}"
    )
    rig.deliver(
        f"ALTER PUBLICATION {rig.slot} ADD TABLE t",
        "INSERT INTO t VALUES (1, 'a', 2)",
        f"DROP TABLE t; {made}",
    )
    assert rig.required("t") == [["id"] if identity == "DEFAULT" else ["k"]]


# --- relations that are gone: nothing stays that grows with their number -------------------------------


UNASKED = 8
"""So few relations are kept without asking, where it is counted what consumers keep."""

NAMING = ("wal2json", "decoderbufs")
"""Decoders that know tables by their names."""

SINKS = ("jsonl", "changelog", "files", "sql")
"""Sinks of one pipeline, so that one run asks all of them."""

CONVERTERS = dict.fromkeys(
    ("key.converter", "value.converter"), "org.apache.kafka.connect.json.JsonConverter"
)


def branches(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    """Return sinks of these types that write into ``folder``."""
    more = {
        "files": {"file.format": "parquet", "file.max.age.ms": "0"},
        "sql": {"url": f"sqlite:///{folder / 'sql'}"},
    }
    return [
        {"name": kind, "type": kind, **more.get(kind, {})}
        | ({} if kind == "sql" else {"path": str(folder / kind)})
        for kind in kinds
    ]


def kinds() -> Counter[str]:
    gc.collect()
    types = map(type, gc.get_objects())
    return Counter(each.__qualname__ for each in types if str(each.__module__).startswith("waltap"))


class Recreations:
    """A pipeline, and a table that is made, filled and dropped again and again."""

    def __init__(
        self, database: Database, folder: Path, plugin: str, *sinks: str, **settings: Any
    ) -> None:
        database.execute("CREATE TABLE k (id int PRIMARY KEY)")
        given = {
            "topic.prefix": "x",
            "plugin.name": plugin,
            "publication.autocreate.mode": None if plugin in NAMING else "all_tables",
        }
        self._database = database
        self.pipeline = PipelineRig(database, folder, given | settings)
        self.pipeline.branches = branches(folder, *sinks)
        self._read = self._made = 0
        self._name = "job_{}" if plugin == "wal2json" else "m"

    def make(self, run: Run, count: int) -> None:
        """Make the table ``count`` times; return when all of it was read, and is known to be gone."""
        with self._database.connect(autocommit=True) as connection:
            for n in range(count):
                self._made += 1
                m = self._name.format(self._made)
                connection.execute(
                    f"BEGIN; CREATE TABLE {m} (id int PRIMARY KEY, n{n % 7} text);"
                    f" INSERT INTO {m} VALUES ({self._made}, 'a'); COMMIT; DROP TABLE {m}".encode()
                )
            for _ in range(6):  # the answer to a question holds for what commits behind it
                self._read += 1
                asked = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
                before = int(asked[0])
                connection.execute(b"INSERT INTO k VALUES (%d)" % self._read)
                run.until(lambda before=before: self._reached() > before, "the row")

    def _reached(self) -> int:
        offset = self.pipeline.offset()
        return 0 if offset is None else offset.sole.position.end_lsn


@pytest.mark.parametrize(
    ("plugin", "sinks", "settings"),
    [
        pytest.param("pgoutput", SINKS, {}, id="sinks"),
        pytest.param("pgoutput", SINKS[:1], CONVERTERS, id="converters"),
        pytest.param("wal2json", SINKS[:1], {}, id="names that differ"),
        pytest.param("decoderbufs", SINKS[:1], {}, id="decoderbufs", marks=pytest.mark.exhaustive),
    ],
)
def test_no_consumer_keeps_anything_of_a_table_that_is_gone(
    database, tmp_path, monkeypatch, plugin, sinks, settings
):
    monkeypatch.setattr("waltap_decoders.retirement.SMALLEST", UNASKED)
    monkeypatch.setattr("waltap.pipeline.stages.relations.MAX_LAST_SEEN", UNASKED)
    monkeypatch.setattr("waltap.changes.mapping.type_registry._CACHE_LIMIT", UNASKED)
    tables = Recreations(database, tmp_path, plugin, *sinks, **settings)
    with tables.pipeline.running() as run:
        tables.make(run, 100)
        grown, own = set(kinds()), {"KnownTable", "TargetName"}  # the SQL target's table of tables
        # Descriptions are dropped now and then; what is kept grows in each round.
        for _ in range(3):
            before = kinds()
            tables.make(run, 100)
            grown &= {kind for kind, count in (kinds() - before).items() if count > 60}
            if grown <= own:
                break
    assert grown <= own
