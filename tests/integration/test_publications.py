"""What is published: inserts of tables without a key, rows that a filter takes and columns that are listed, partitions that
come and go."""

import contextlib
import re
import sqlite3

import pytest
from tests.harness.pipeline import SIGNALS, PipelineRig
from tests.harness.servers.postgres import Database
from tests.hunt.delivered import from_change_log

from waltap.cli.profile_source import connected
from waltap_postgres.errors import InsertsPublicationGone, SnapshotSelectNarrow
from waltap_postgres.replication.publication import plan_publication
from waltap_sinks.changelog import ChangeLog

INSERTS = {"publication.keyless.tables": "inserts"}


pytestmark = pytest.mark.pipeline(
    sql="CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)",
    settings={"waltap.new.tables": "warn"},
)


def published_inserts(database: Database, pipeline: PipelineRig) -> list[str]:
    rows = database.execute(
        f"SELECT tablename::text FROM pg_publication_tables WHERE pubname = '{pipeline.slot}_inserts'"
    )
    return sorted(str(row[0]) for row in rows)


def until_published(database: Database, pipeline: PipelineRig, tables: list[str], sql: str) -> int:
    """Deliver ``sql``, of a row with the next number, until the slot has let go of what is older; return the last one."""
    for n in range(10, 40):
        pipeline.deliver("CHECKPOINT", sql.format(n))
        if published_inserts(database, pipeline) == tables:
            return n
    pytest.fail("the publication of inserts was never used")


def test_a_table_without_key_comes_while_the_engine_is_down(pipeline):
    pipeline.settings |= INSERTS
    pipeline.catch_up()
    pipeline.deliver(
        "INSERT INTO t VALUES (1); CREATE TABLE log (id int)",
        "ALTER TABLE u DROP CONSTRAINT u_pkey",
        "INSERT INTO u VALUES (5)",
    )
    reported = pipeline.doctor()["replica identity"]
    assert (reported.verdict, "only inserts" in reported.found) == ("warning", True)
    pipeline.deliver(
        "INSERT INTO log VALUES (2); UPDATE log SET id = 3",
        "INSERT INTO u VALUES (6); DELETE FROM u; INSERT INTO t VALUES (4)",
    )
    assert pipeline.destination.ids("t") == [1, 4]
    assert pipeline.destination.ids("u") == [5, 6]
    assert pipeline.destination.ids("log") == [2]


@pytest.mark.pipeline(
    sql="CREATE TABLE log (id int) PARTITION BY LIST (id); CREATE TABLE log_1 PARTITION OF log DEFAULT",
    settings={"publish.via.partition.root": True},
)
def test_rows_of_a_partitioned_table_without_key_have_its_name(pipeline):
    pipeline.settings |= INSERTS
    pipeline.catch_up()
    pipeline.deliver("INSERT INTO log VALUES (1)")
    pipeline.deliver("INSERT INTO log VALUES (2)")
    assert pipeline.destination.ids("log") == [1, 2]


def test_a_table_that_gets_its_key_back_gives_what_it_had_before(database, pipeline):
    database.execute("ALTER TABLE u DROP CONSTRAINT u_pkey")
    pipeline.settings |= INSERTS
    pipeline.catch_up()
    pipeline.deliver("INSERT INTO u VALUES (1); ALTER TABLE u ADD PRIMARY KEY (id)")
    pipeline.deliver("INSERT INTO u VALUES (2)")
    assert pipeline.destination.ids("u") == [1, 2]


def test_the_policy_is_chosen_for_a_slot_that_is_there(database, pipeline, caplog):
    """The publication is younger than what the slot has to decode: it gets its tables later."""
    pipeline.catch_up()
    database.execute("INSERT INTO t VALUES (1); CREATE TABLE log (id int)")
    database.execute("ALTER TABLE u DROP CONSTRAINT u_pkey; INSERT INTO u VALUES (5)")
    pipeline.settings |= INSERTS
    pipeline.catch_up()
    assert "join the publication of inserts at a later start" in caplog.text
    assert published_inserts(database, pipeline) == []
    n = until_published(database, pipeline, ["log", "u"], "INSERT INTO u VALUES ({})")
    assert pipeline.destination.ids("u") == [5, *range(10, n + 1)]
    pipeline.deliver("INSERT INTO log VALUES (2); UPDATE u SET id = 0; INSERT INTO t VALUES (4)")
    assert pipeline.destination.ids("t") == [1, 4]
    assert pipeline.destination.ids("log") == [2]


def test_a_table_without_key_that_is_made_while_the_stream_asks_for_no_inserts_waits_for_a_start(
    database, pipeline
):
    """The slot has to decode what is older than the publication of inserts."""
    pipeline.catch_up()
    database.execute("INSERT INTO t VALUES (1)")
    pipeline.settings |= INSERTS | {"waltap.new.tables": "snapshot"}
    with pipeline.running() as run:
        database.execute("CREATE TABLE log (id int); CREATE TABLE keyed (id int PRIMARY KEY)")
        reported = [("public.keyed", "snapshot"), ("public.log", "uncaptured")]
        run.until(lambda: sorted(run.notices.new_tables) == reported, "the news")

        def may_ask() -> bool:  # a start could; this stream has begun without
            database.run("SELECT txid_current()", "CHECKPOINT")
            query = (
                "SELECT age(p.xmin) > age(catalog_xmin) FROM pg_publication p, pg_replication_slots"
            )
            return database.execute(f"{query} WHERE pubname LIKE '%_inserts'") == [(True,)]

        run.until(may_ask, "the slot to let go of what is older")
        added = pipeline.command("tables", "add", "FILE", "public.log", "public.keyed")
        assert added.stdout.splitlines()[:2] == [
            "p: public.log joins at the next start",
            "p: public.keyed is streamed already",
        ]
        assert published_inserts(database, pipeline) == []
    database.execute("INSERT INTO log VALUES (1)")
    until_published(database, pipeline, ["log"], "INSERT INTO t VALUES ({})")
    pipeline.deliver("INSERT INTO log VALUES (2)")
    assert pipeline.destination.ids("log", "c") == [2]


def test_a_table_whose_key_goes_leaves_an_empty_publication(database, pipeline):
    """It was the only one; in both publications its updates would stay refused."""
    database.execute("DROP TABLE u")
    pipeline.settings |= INSERTS
    pipeline.catch_up()
    pipeline.deliver("ALTER TABLE t DROP CONSTRAINT t_pkey")
    pipeline.deliver("INSERT INTO t VALUES (1); UPDATE t SET id = 2; DELETE FROM t")
    pipeline.deliver("ALTER TABLE t ADD PRIMARY KEY (id); INSERT INTO t VALUES (3)")
    assert published_inserts(database, pipeline) == []
    pipeline.deliver("UPDATE t SET id = 4")
    assert [event.op for event in pipeline.destination.of("t")] == ["c", "c", "u"]


def test_a_publication_of_inserts_that_was_made_after_the_slot_lets_it_go_on_as_its_remedy_says(
    database, pipeline, caplog
):
    """As a pipeline of an older version left it; what is inserted into u meanwhile is reported."""
    pipeline.catch_up()
    database.execute("ALTER TABLE u DROP CONSTRAINT u_pkey")
    database.execute("INSERT INTO t VALUES (1); INSERT INTO u VALUES (1)")
    name = pipeline.slot
    database.execute(
        f"CREATE PUBLICATION {name}_inserts FOR TABLE u WITH (publish = 'insert, truncate');"
        f"ALTER PUBLICATION {name} DROP TABLE u; INSERT INTO u VALUES (2); INSERT INTO t VALUES (2)"
    )
    pipeline.settings |= INSERTS
    for _ in range(2):
        with pytest.raises(InsertsPublicationGone) as refused:
            pipeline.catch_up()
    statements = re.search(
        r"DROP PUBLICATION [^;]+; CREATE PUBLICATION [^;]+", refused.value.advice()
    )
    pipeline.deliver(*statements[0].split("; "))
    assert pipeline.destination.ids("t") == [1, 2]
    assert pipeline.destination.ids("u") == [1]
    assert "until then, tables in no publication are not captured" in caplog.text
    n = until_published(database, pipeline, ["u"], "INSERT INTO t VALUES ({})")
    assert (
        "table public.u was captured before, and is captured again after an interruption; rows and "
        "changes in between are missing"
    ) in caplog.text
    pipeline.deliver("INSERT INTO u VALUES (5)")
    assert pipeline.destination.ids("u") == [1, 5]
    assert pipeline.destination.ids("t") == [1, 2, *range(10, n + 1)]


# --- snapshots deliver no more than what is published --------------------------------------------------


WANTED = [3, *range(11, 41)]


@pytest.fixture
def part(database, tmp_path) -> PipelineRig:
    ((version,),) = database.execute("SHOW server_version_num")
    if int(version) < 150000:
        pytest.skip("publications have no row filters")
    database.execute(
        f"{SIGNALS}; CREATE TABLE f (id int PRIMARY KEY, name text, secret text);"
        "INSERT INTO f SELECT n, 'n' || n, 's' FROM generate_series(1, 40) n"
    )
    settings = {
        "publication.autocreate.mode": "disabled",
        "signal.data.collection": "public.signals",
        "incremental.snapshot.chunk.size": 7,
    }
    found = PipelineRig(database, tmp_path, settings)
    database.execute(
        f"CREATE PUBLICATION {found.slot} FOR TABLE f (id, name) WHERE (id > 10 OR id = 3), signals"
    )
    return found


def read(part: PipelineRig) -> list[int]:
    events = [e for e in part.destination.events if e.table == "public.f"]
    assert all(set(e.row) == {"id", "name"} for e in events)
    return part.destination.ids("f", "r")


@pytest.mark.parametrize(
    "settings",
    [{}, {"snapshot.max.threads": "2", "snapshot.max.threads.multiplier": "3"}],
)
def test_an_initial_snapshot_reads_what_is_published(part, settings):
    part.catch_up(**settings)
    assert sorted(read(part)) == WANTED


OVERRIDES = "snapshot.select.statement.overrides"


def test_a_select_without_the_row_filters_columns_is_refused_before_a_row_is_read(part):
    """Its remedy is carried out; a table without a row filter may be read by any SELECT."""
    settings = {
        OVERRIDES: "public.f",
        f"{OVERRIDES}.public.f": "SELECT name FROM f",
        "publication.name": "wide",
    }
    part.database.execute(
        "CREATE PUBLICATION wide FOR TABLE f (id, name) WHERE (id > 10 OR id = 3), signals"
    )
    with pytest.raises(SnapshotSelectNarrow) as refused:
        part.catch_up(**settings)
    assert "(id > 10)" in refused.value.advice()
    assert part.destination.events == []
    part.catch_up(**settings | {f"{OVERRIDES}.public.f": "SELECT name, id FROM f"})
    assert sorted(read(part)) == WANTED


@pytest.mark.parametrize("kind", ["incremental", "blocking"])
def test_a_snapshot_that_is_asked_for_reads_what_is_published(part, kind):
    part.catch_up(**{"snapshot.mode": "no_data"})
    part.signal("execute-snapshot", "f", type=kind)
    with part.running(**{"snapshot.mode": "no_data"}) as run:
        run.until(lambda: len(read(part)) >= len(WANTED), "the snapshot is complete")
        run.until(
            lambda: "completed" in [event for event, _, _ in run.notices.snapshots],
            "it is reported",
        )
    assert sorted(read(part)) == WANTED


def test_published_columns_keep_their_numbers(part):
    """Over starts, and DDL that the pipeline lags behind."""
    path = str(part.folder / "log")
    sink = {"sink.type": "changelog", "sink.path": path}
    for number, ddl in enumerate(["ADD x int", "DROP secret", "RENAME name TO n"], 41):
        part.catch_up(**sink)
        rows = f"INSERT INTO f VALUES ({number})", f"INSERT INTO f VALUES ({-number + 200})"
        part.database.run(rows[0], f"ALTER TABLE f {ddl}", rows[1])
    part.catch_up(**sink)
    tables = [t for m in ChangeLog(path).manifests() for t in m.tables if t.table == "f"]
    assert {tuple(column.number for column in table.columns) for table in tables} == {(1, 2)}
    assert sum(table.rows for table in tables) == len(WANTED) + 6, "none was read again"


@pytest.mark.parametrize("kind", ["sqlite", "changelog"])
def test_a_row_that_an_update_moves_into_a_filter_may_lack_a_large_value(part, kind):
    """The server sends it as an INSERT. A destination that has the row keeps the value; a change log names it."""
    database, folder = part.database, part.folder
    database.execute(
        f"ALTER PUBLICATION {part.slot} SET TABLE f WHERE (id > 10), signals;"
        "ALTER TABLE f ALTER secret SET STORAGE EXTERNAL; DELETE FROM f;"
        "INSERT INTO f VALUES (1, 'a', repeat('x', 3000)), (11, 'b', repeat('y', 3000))"
    )
    sink = {"sqlite": {"sink.type": "sql", "sink.url": f"sqlite:///{folder}/t.db"}}.get(
        kind, {"sink.type": "changelog", "sink.path": str(folder / "log")}
    )
    part.catch_up(**sink)
    assert "lacks unchanged large values" in part.doctor()["publication"].found
    database.execute("UPDATE f SET id = 12 WHERE id = 1")
    part.catch_up(**sink)
    if kind == "sqlite":
        with contextlib.closing(sqlite3.connect(folder / "t.db")) as target:
            rows = target.execute("SELECT id, name, length(secret) FROM f ORDER BY id").fetchall()
            assert rows == [(11, "b", 3000), (12, "a", None)]
        return
    event = from_change_log(folder / "log")[-1]
    assert (event.op, event.unsent) == ("u", ("secret",))


# --- partitions that come and go while a pipeline streams ----------------------------------------------


partitioned = pytest.mark.pipeline(
    sql="CREATE TABLE m (id int PRIMARY KEY) PARTITION BY RANGE (id);"
    "CREATE TABLE m1 PARTITION OF m FOR VALUES FROM (0) TO (100);"
    "CREATE TABLE m2 (id int PRIMARY KEY);"
    "INSERT INTO m VALUES (1)",
    settings={"table.include.list": r"public\.m.*", "status.update.interval.ms": 100},
)


@partitioned
@pytest.mark.parametrize(
    ("root", "mode", "before"),
    [
        pytest.param(True, "all_tables", "", id="root, all tables"),
        pytest.param(False, "filtered", "", id="partitions"),
        pytest.param(
            False, "filtered", "CREATE PUBLICATION {} FOR TABLE m1, m2", id="without root"
        ),
    ],
)
def test_a_partition_is_attached_and_detached_in_mid_stream(pipeline, root, mode, before):
    database, destination = pipeline.database, pipeline.destination
    database.execute(before.format(pipeline.slot))
    settings = {
        "publish.via.partition.root": root,
        "publication.autocreate.mode": mode,
        "waltap.new.tables": "snapshot" if root else "warn",
    }
    with pipeline.running(**settings) as run:
        database.execute("INSERT INTO m2 VALUES (101)")
        database.execute("ALTER TABLE m ATTACH PARTITION m2 FOR VALUES FROM (100) TO (200)")
        database.execute("INSERT INTO m VALUES (2), (102)")
        database.execute("CREATE TABLE m3 PARTITION OF m FOR VALUES FROM (200) TO (300)")
        database.execute("INSERT INTO m VALUES (202)")
        database.execute("ALTER TABLE m DETACH PARTITION m1")
        database.execute("INSERT INTO m1 VALUES (3); INSERT INTO m VALUES (103)")
        run.until(
            lambda: {3, 103} <= {int(event.row["id"]) for event in destination.events},
            "the last rows",
        )
        if root:  # the rows from before are read under the new name
            run.until(lambda: 1 in destination.ids("m1", "r"), "the rows of the detached partition")
    streamed = [
        (event.table, int(event.row["id"])) for event in destination.events if event.op == "c"
    ]
    whole = "public.m" if root else None
    assert streamed == [
        ("public.m2", 101),
        (whole or "public.m1", 2),
        (whole or "public.m2", 102),
        (whole or "public.m3", 202),
        ("public.m1", 3),
        (whole or "public.m2", 103),
    ]


@partitioned
def test_a_server_before_13_is_asked_to_publish_no_root(pipeline):
    profile = pipeline.profile(pipeline.host()[0], **{"publication.autocreate.mode": "filtered"})
    with connected(profile, pipeline.host()[0]) as (connector, _):
        connector.catalogue.version_num = 120022
        plan = plan_publication(connector.catalogue, connector.captured(), operations=None)
    (statement,) = plan.statements
    assert statement.endswith(' FOR TABLE "public"."m1", "public"."m2"')
