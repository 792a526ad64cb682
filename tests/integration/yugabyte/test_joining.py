"""Tables that join the publication of a slot that is there: when they are read, and when not at all. Double A.

Verified against a protocol double built from published sources; no YugabyteDB server was run.
"""

import pytest
from tests.harness.pipeline import Run
from tests.harness.yugabyte.pipeline import YugabytePipeline

from waltap_yugabyte.errors import TableTooLate

JOINS = {
    "waltap.new.tables": "snapshot",
    "signal.data.collection": "public.signals",
    "yb.event.form": None,
    "status.update.interval.ms": 100,
}
HOUR_S = 3600.0


@pytest.fixture
def joining(pipeline) -> YugabytePipeline:
    pipeline.server.late = True
    pipeline.server.database.execute(
        "CREATE TABLE signals (id text PRIMARY KEY, type text, data text)"
    )
    pipeline.settings |= JOINS
    return pipeline


def passes_the_stream(pipeline: YugabytePipeline, run: Run, number: int) -> None:
    """Write a row of a table that is streamed, and wait for it: what came before has been seen."""
    pipeline.server.database.execute("INSERT INTO t VALUES (%s)", number)
    run.until(lambda: number in [r["key"]["id"] for r in pipeline.records()], "the row of t")


def write_between(pipeline: YugabytePipeline, table: str) -> None:
    execute = pipeline.server.database.execute
    execute(f"INSERT INTO {table} VALUES (2, 'between')")
    execute(f"UPDATE {table} SET v = 'changed between' WHERE id = 1")


def follow_and_read(pipeline: YugabytePipeline, run: Run, table: str, number: int) -> None:
    """Nothing comes until the slot follows its publication; minutes pass, and everything is there."""
    server = pipeline.server
    passes_the_stream(pipeline, run, number)
    assert pipeline.records(table) == []
    server.refresh()
    server.database.execute(f"INSERT INTO {table} VALUES (3, 'streamed')")
    server.ahead_s = 901.0
    run.until(lambda: pipeline.same(table), "all rows")
    server.database.execute(f"UPDATE {table} SET v = 'later'; DELETE FROM {table} WHERE id = 3")
    run.until(lambda: pipeline.same(table), "what came later")
    assert server.refused == []


def test_a_table_that_joins_at_a_start_is_read_when_the_slot_has_followed(joining):
    database = joining.server.database
    captured = {"table.include.list": "public.t,public.late"}
    with joining.running(**captured):
        pass
    database.execute("CREATE TABLE late (id int PRIMARY KEY, v text)")
    database.execute("INSERT INTO late VALUES (1, 'before')")
    with joining.running(**captured) as run:
        write_between(joining, "late")
        passes_the_stream(joining, run, 1)
        run.until(lambda: joining.offset().signals.get("queue"), "the queued table")
        assert joining.records("late") == []
    with joining.running(**captured) as run:  # it still waits after a restart
        database.execute("INSERT INTO late VALUES (4, 'between, too')")
        follow_and_read(joining, run, "late", 2)


def test_a_table_that_is_made_meanwhile_is_read_when_the_slot_has_followed(joining):
    database = joining.server.database
    with joining.running(**{"publication.autocreate.mode": "filtered"}) as run:
        database.execute("CREATE TABLE made (id int PRIMARY KEY, v text)")
        database.execute("INSERT INTO made VALUES (1, 'before')")
        asked = "public.made", "snapshot"
        run.until(lambda: asked in run.notices.new_tables, "the signal")
        write_between(joining, "made")
        follow_and_read(joining, run, "made", 1)


def test_a_table_that_somebody_else_adds_is_read_when_the_slot_has_followed(joining):
    """Also one that was taken out and put in again."""
    database, name = joining.server.database, joining.settings["publication.name"]
    database.execute("CREATE TABLE added (id int PRIMARY KEY, v text)")
    database.execute(f'CREATE PUBLICATION "{name}" FOR TABLE t, signals, added')
    settings = {"publication.autocreate.mode": "disabled", "waltap.new.tables": "warn"}
    with joining.running(**settings) as run:
        database.execute(f'ALTER PUBLICATION "{name}" DROP TABLE added')
        database.execute("INSERT INTO added VALUES (1, 'before')")
        joining.server.refresh()
        database.execute(f'ALTER PUBLICATION "{name}" ADD TABLE added')
        joining.signal("execute-snapshot", "added", type="incremental")
        write_between(joining, "added")
        follow_and_read(joining, run, "added", 1)


def test_releases_that_follow_at_once_do_not_wait(joining):
    server = joining.server
    server.late = False
    name = server.database.name
    newer = server.version.replace("2025.2.4.0", "2026.1.0.0")
    server.database.execute(f"ALTER DATABASE \"{name}\" SET yb_double.version = '{newer}'")
    with joining.running() as run:
        server.database.execute("CREATE TABLE made (id int PRIMARY KEY, v text)")
        server.database.execute("INSERT INTO made VALUES (1, 'before')")
        run.until(lambda: joining.same("made"), "the row")


MEMBERS = "SELECT tablename::text FROM pg_publication_tables WHERE pubname = %s ORDER BY 1"


def test_a_table_of_no_interest_to_the_slot_is_refused_before_it_is_published(joining):
    """It would make the slot unusable: it was there when the slot was made, more than four hours ago. Younger ones are
    of interest, and all where the cluster keeps them for longer."""
    server, database = joining.server, joining.server.database
    server.late = False
    for table in ("old", "older"):
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)")
    with joining.running(**{"table.include.list": "public.t"}):
        pass
    database.execute("CREATE TABLE young (id int PRIMARY KEY, v text)")
    server.ahead_s = 5 * HOUR_S
    more = {"table.include.list": "public.t,public.old,public.young"}
    with pytest.raises(TableTooLate, match=r"public\.old: .* made 5\.0 hours ago") as refused:
        joining.run(**more)
    assert "public.young" not in str(refused.value)
    name = joining.settings["publication.name"]
    assert database.execute(MEMBERS, name) == [("signals",), ("t",)]
    # with a new slot, as the error says
    server.execute("SELECT pg_drop_replication_slot(%s)", joining.slot)
    joining.offset_file.unlink()
    with joining.running(**more) as run:
        database.execute("INSERT INTO old VALUES (1, 'x')")
        run.until(lambda: joining.same("old"), "the row")
    # or where it is said to keep them
    server.ahead_s = 10 * HOUR_S
    more["table.include.list"] += ",public.older"
    with joining.running(**more, **{"yb.table.interest.ms": 11 * int(HOUR_S) * 1000}):
        members = [("old",), ("older",), ("signals",), ("t",), ("young",)]
        assert database.execute(MEMBERS, name) == members
