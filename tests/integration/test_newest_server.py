"""What PostgreSQL 16 to 18 brought, on a real 18: the newest that waltap says it knows."""

import contextlib
import sqlite3

import pytest
from tests.harness.pipeline import PipelineRig, until

from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.errors import IdentityMissing
from waltap_postgres.properties import PostgresProperties


@pytest.fixture
def pipeline(newest_database, tmp_path) -> PipelineRig:
    newest_database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1)")
    return PipelineRig(newest_database, tmp_path, {"waltap.new.tables": "warn"})


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="text"),
        pytest.param({"pgoutput.streaming": "parallel"}, id="protocol 4"),
        pytest.param({"pgoutput.two_phase": True, "two.phase.policy": "prepare"}, id="2pc"),
    ],
)
def test_changes_come_in_every_form(pipeline, options):
    database = pipeline.database
    pipeline.settings |= options
    database.execute(f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'")
    pipeline.catch_up()
    database.execute("INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(10, 400) g")
    with database.connect() as connection:
        connection.execute("BEGIN; SAVEPOINT s; UPDATE t SET v = v || 'y'; ROLLBACK")
        connection.execute("BEGIN; UPDATE t SET v = 'y' WHERE id = 10; SAVEPOINT s")
        connection.execute("DELETE FROM t; ROLLBACK TO s; DELETE FROM t WHERE id = 11; COMMIT")
        if database.server.version >= 150000:
            connection.execute("BEGIN; INSERT INTO t VALUES (500); PREPARE TRANSACTION 'p'")
            connection.execute("COMMIT PREPARED 'p'")
    pipeline.catch_up()
    ops = [event.op for event in pipeline.destination.of("t")]
    assert ops == ["r", *["c"] * 391, "u", "d", "c"]


def test_a_snapshot_outlasts_the_limit_of_a_transaction(pipeline):
    database = pipeline.database
    database.execute("CREATE TABLE u AS SELECT 2 AS id; CREATE TABLE w AS SELECT 3 AS id")
    database.execute(f"ALTER DATABASE {database.name} SET transaction_timeout = '200ms'")
    pipeline.settings["publication.keyless.tables"] = "publish"
    held, release = pipeline.destination.hold()
    with pipeline.running(ready=False) as run:
        run.until(held.is_set, "the first table")
        # the session is gone where the limit holds
        over = (
            "SELECT coalesce(bool_and(now() > xact_start + interval '1 s'), true) FROM pg_stat_activity"
            f" WHERE application_name = 'waltap snapshot' AND datname = '{database.name}'"
        )
        until(lambda: database.server.execute(over) == [(True,)], "the limit")
        release.set()
        run.until(lambda: pipeline.destination.ids("w"), "the last table")
    assert [*pipeline.destination.ids("t"), *pipeline.destination.ids("u")] == [1, 2]


def test_a_not_null_that_is_not_validated_is_not_of_older_rows(pipeline):
    database = pipeline.database
    database.execute(
        "CREATE TABLE n (id int PRIMARY KEY, v int); CREATE TABLE k (id int);"
        "INSERT INTO n VALUES (1, NULL); CREATE UNIQUE INDEX ON k (id);"
        "ALTER TABLE n ADD NOT NULL v NOT VALID; ALTER TABLE k ADD NOT NULL id NOT VALID"
    )
    properties = PostgresProperties.model_construct(key_index="sound")
    with database.connect() as connection:
        found = PostgresCatalogue(connection, properties).tables()
    keys = {table.relation.table: table.relation.primary_key for table in found}
    assert keys == {"t": ("id",), "n": ("id",), "k": ()}
    target = pipeline.folder / "t.db"
    sink = {"sink.type": "sql", "sink.url": f"sqlite:///{target}", "table.include.list": "public.n"}
    pipeline.catch_up(**sink)
    database.execute("UPDATE n SET v = 5; ALTER TABLE n VALIDATE CONSTRAINT n_v_not_null")
    database.execute("INSERT INTO n VALUES (2, 6)")
    pipeline.catch_up(**sink)
    with contextlib.closing(sqlite3.connect(target)) as rows:
        assert rows.execute("SELECT id, v FROM n ORDER BY id").fetchall() == [(1, 5), (2, 6)]


def test_a_generated_column_in_a_replica_identity_is_refused_as_it_would_stop_updates(pipeline):
    database = pipeline.database
    database.execute(
        "CREATE TABLE g (id int PRIMARY KEY, v int GENERATED ALWAYS AS (id) STORED);"
        "ALTER TABLE g REPLICA IDENTITY FULL; INSERT INTO g VALUES (1)"
    )
    for mode in ("all_tables", "filtered"):
        pipeline.settings["publication.autocreate.mode"] = mode
        with pytest.raises(IdentityMissing, match="generated columns") as refused:
            pipeline.catch_up(**{"publication.keyless.tables": "refuse"})
    database.execute(refused.value.fields["sql"])
    pipeline.catch_up(**{"publication.keyless.tables": "refuse"})
    pipeline.deliver("UPDATE g SET id = 2")
    assert pipeline.destination.ids("g") == [1, 2]


def test_a_publication_dropped_while_down_is_reported(pipeline, caplog):
    """Up to 17 the slot cannot be read on (WT-2113); 18 leaves out what was published."""
    database = pipeline.database
    pipeline.catch_up()
    database.execute(f"DROP PUBLICATION {pipeline.slot}; INSERT INTO t VALUES (2)")
    run = pipeline.catch_up()
    assert run.notices.new_tables == [("public.t", "incomplete")]
    assert "does not have all changes of public.t" in caplog.text
    pipeline.deliver("INSERT INTO t VALUES (3)")
    assert pipeline.destination.ids("t") == [1, 3]


def test_a_publication_dropped_while_streaming_is_reported(pipeline):
    database = pipeline.database
    with pipeline.running() as run:
        database.execute(f"DROP PUBLICATION {pipeline.slot}; INSERT INTO t VALUES (2)")
        wanted = ("public.t", "interrupted")
        run.until(lambda: wanted in run.notices.new_tables, "the notice")
        assert run.notices.new_tables.count(wanted) == 1
    again = pipeline.catch_up()
    assert again.notices.new_tables == [("public.t", "incomplete")]


@pytest.mark.parametrize("published", [True, False])
def test_generated_columns_are_as_the_publication_says(pipeline, published):
    database = pipeline.database
    database.execute(
        "CREATE TABLE g (id int PRIMARY KEY, d int GENERATED ALWAYS AS (id * 2) STORED)"
    )
    kind = "stored" if published else "none"
    database.execute(
        f"CREATE PUBLICATION {pipeline.slot} FOR TABLE g WITH (publish_generated_columns = {kind})"
    )
    pipeline.settings |= {
        "publication.autocreate.mode": "disabled", "table.include.list": "public.g",
    }  # fmt: skip
    pipeline.catch_up()
    pipeline.deliver("INSERT INTO g VALUES (1); UPDATE g SET id = 5")
    events = pipeline.destination.of("g")
    assert [event.op for event in events] == ["c", "u"]
    assert [event.row.get("d") for event in events] == (["2", "10"] if published else [None, None])
