"""Snapshots deliver no more than what is published: rows that a filter takes, columns that are listed."""

import contextlib
import sqlite3

import pytest
from tests.harness.pipeline import SIGNALS, PipelineRig
from tests.hunt.delivered import from_change_log

from waltap_postgres.errors import SnapshotSelectNarrow
from waltap_sinks.changelog import ChangeLog

WANTED = [3, *range(11, 41)]


@pytest.fixture
def pipeline(database, tmp_path) -> PipelineRig:
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


def read(pipeline: PipelineRig) -> list[int]:
    events = [e for e in pipeline.destination.events if e.table == "public.f"]
    assert all(set(e.row) == {"id", "name"} for e in events)
    return pipeline.destination.ids("f", "r")


@pytest.mark.parametrize(
    "settings",
    [{}, {"snapshot.max.threads": "2", "snapshot.max.threads.multiplier": "3"}],
)
def test_an_initial_snapshot_reads_what_is_published(pipeline, settings):
    pipeline.catch_up(**settings)
    assert sorted(read(pipeline)) == WANTED


OVERRIDES = "snapshot.select.statement.overrides"


def test_a_select_without_the_row_filters_columns_is_refused_before_a_row_is_read(pipeline):
    """Its remedy is carried out; a table without a row filter may be read by any SELECT."""
    settings = {
        OVERRIDES: "public.f",
        f"{OVERRIDES}.public.f": "SELECT name FROM f",
        "publication.name": "wide",
    }
    pipeline.database.execute(
        "CREATE PUBLICATION wide FOR TABLE f (id, name) WHERE (id > 10 OR id = 3), signals"
    )
    with pytest.raises(SnapshotSelectNarrow) as refused:
        pipeline.catch_up(**settings)
    assert "(id > 10)" in refused.value.advice()
    assert pipeline.destination.events == []
    pipeline.catch_up(**settings | {f"{OVERRIDES}.public.f": "SELECT name, id FROM f"})
    assert sorted(read(pipeline)) == WANTED


@pytest.mark.parametrize("kind", ["incremental", "blocking"])
def test_a_snapshot_that_is_asked_for_reads_what_is_published(pipeline, kind):
    pipeline.catch_up(**{"snapshot.mode": "no_data"})
    pipeline.signal("execute-snapshot", "f", type=kind)
    with pipeline.running(**{"snapshot.mode": "no_data"}) as run:
        run.until(lambda: len(read(pipeline)) >= len(WANTED), "the snapshot is complete")
        run.until(
            lambda: "completed" in [event for event, _, _ in run.notices.snapshots],
            "it is reported",
        )
    assert sorted(read(pipeline)) == WANTED


def test_published_columns_keep_their_numbers(pipeline):
    """Over starts, and DDL that the pipeline lags behind."""
    path = str(pipeline.folder / "log")
    sink = {"sink.type": "changelog", "sink.path": path}
    for number, ddl in enumerate(["ADD x int", "DROP secret", "RENAME name TO n"], 41):
        pipeline.catch_up(**sink)
        rows = f"INSERT INTO f VALUES ({number})", f"INSERT INTO f VALUES ({-number + 200})"
        pipeline.database.run(rows[0], f"ALTER TABLE f {ddl}", rows[1])
    pipeline.catch_up(**sink)
    tables = [t for m in ChangeLog(path).manifests() for t in m.tables if t.table == "f"]
    assert {tuple(column.number for column in table.columns) for table in tables} == {(1, 2)}
    assert sum(table.rows for table in tables) == len(WANTED) + 6, "none was read again"


@pytest.mark.parametrize("kind", ["sqlite", "changelog"])
def test_a_row_that_an_update_moves_into_a_filter_may_lack_a_large_value(pipeline, kind):
    """The server sends it as an INSERT. A destination that has the row keeps the value; a change log names it."""
    database, folder = pipeline.database, pipeline.folder
    database.execute(
        f"ALTER PUBLICATION {pipeline.slot} SET TABLE f WHERE (id > 10), signals;"
        "ALTER TABLE f ALTER secret SET STORAGE EXTERNAL; DELETE FROM f;"
        "INSERT INTO f VALUES (1, 'a', repeat('x', 3000)), (11, 'b', repeat('y', 3000))"
    )
    sink = {"sqlite": {"sink.type": "sql", "sink.url": f"sqlite:///{folder}/t.db"}}.get(
        kind, {"sink.type": "changelog", "sink.path": str(folder / "log")}
    )
    pipeline.catch_up(**sink)
    assert "lacks unchanged large values" in pipeline.doctor()["publication"].found
    database.execute("UPDATE f SET id = 12 WHERE id = 1")
    pipeline.catch_up(**sink)
    if kind == "sqlite":
        with contextlib.closing(sqlite3.connect(folder / "t.db")) as target:
            rows = target.execute("SELECT id, name, length(secret) FROM f ORDER BY id").fetchall()
            assert rows == [(11, "b", 3000), (12, "a", None)]
        return
    event = from_change_log(folder / "log")[-1]
    assert (event.op, event.unsent) == ("u", ("secret",))
