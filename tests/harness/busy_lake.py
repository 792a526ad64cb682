"""A source that is written, an engine, and an applier, all at the same time; and who looks at the tables meanwhile.

Money moves between two tables of different modes. Accounts change their keys, are deleted and opened again, and
have a long text that most changes do not send.
"""

import contextlib
import random
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import psycopg
from tests.harness.meanwhile import meanwhile
from tests.harness.pipeline import PipelineRig, until
from tests.harness.servers.postgres import Database

from waltap_sinks.changelog import ChangeLog
from waltap_spark.apply.applier import OutputApplier
from waltap_spark.config.options import ApplyOptions
from waltap_spark.formats.choice import FormatChoice
from waltap_spark.read.live import LiveTables, open_tables
from waltap_spark.read.verify import compare
from waltap_spark.session.session import prepare
from waltap_spark.state.modes import ModeRules
from waltap_spark.state.output import SparkOutput

ACCOUNTS = 300
START = 1000
TOTAL = 2 * ACCOUNTS * START
NAMES = ("public.here", "public.there")
MODES = (r"public\.there:scd2", "scd1")
PATIENCE_S = 240.0
AHEAD = 50
"""Most movements between two commits of the applier: a slow one is never far behind."""
TABLES = f"""
CREATE TABLE here (id int PRIMARY KEY, amount int8, note text, secret text);
ALTER TABLE here ALTER note SET STORAGE external;
INSERT INTO here SELECT g, {START}, repeat('long ', 2000), 's' || g FROM generate_series(1, {ACCOUNTS}) g;
CREATE TABLE there (LIKE here INCLUDING ALL);
INSERT INTO there SELECT * FROM here;
"""


def looks_right_while_it_runs(
    database: Database, folder: Path, spark: Any, table_format: str
) -> None:
    """Whoever reads finds one sum, now, as of a position, and as of a time; `compare` finds both sides equal, but
    for a column that is masked on the way, until one of them has a row more."""
    database.execute(TABLES)
    with _running(database, folder, spark, table_format) as location:
        tables = open_tables(spark, str(location))
        chance = random.Random(7)
        for _ in range(2):
            state = tables.refresh().state
            assert state is not None
            log_position = chance.choice(
                [cut.log_position for cut in state.cuts] or [state.log_position]
            )
            now = tables.at(datetime.now(UTC))
            assert [_total(each) for each in (tables, tables.at(log_position), now)] == [TOTAL] * 3
        with psycopg.connect(database.dsn, autocommit=True) as connection:
            found = compare(connection, tables, without=("secret",), patience_s=PATIENCE_S)
    assert {each.table: each.equal for each in found} == dict.fromkeys(NAMES, True), found
    database.execute("INSERT INTO here VALUES (-1, 0)")
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        first, other = compare(connection, tables.refresh())
    assert (first.table, first.missing) == (NAMES[0], ("(id=-1)",))
    assert (first.columns, other.columns) == (("secret",), ("secret",))


def _total(tables: LiveTables) -> int:
    return sum(tables.live_rows(name).agg({"amount": "sum"}).collect()[0][0] or 0 for name in NAMES)


@contextlib.contextmanager
def _running(database: Database, folder: Path, spark: Any, table_format: str) -> Iterator[Path]:
    log, output = str(folder / "log"), folder / "out"
    pipeline = PipelineRig(
        database,
        folder,
        {
            "sink.type": "changelog",
            "sink.path": log,
            "column.mask.with.4.chars": r"public\..*\.secret",
        },
    )
    reader = ChangeLog(log)
    moved: Queue[None] = Queue(AHEAD)
    applier = OutputApplier(
        prepare(spark),
        reader,
        SparkOutput(str(output)),
        ApplyOptions(modes=ModeRules(modes=MODES)),
        FormatChoice(table_format),
    )

    def follow() -> bool:
        new = list(reader.manifests(applier.state.log_position))
        applier.apply(new)
        return bool(new)

    def apply(stop: threading.Event) -> None:
        while not stop.is_set():
            if not follow():
                stop.wait(0.1)
            while not moved.empty():
                moved.get()

    with pipeline.running() as run:
        applier.open()
        until(follow, "the first rows")
        with meanwhile(apply, partial(_move, database, moved)):
            yield output
        run.stop()
    pipeline.catch_up()
    follow()
    applier.close()


def _move(database: Database, moved: "Queue[None]", stop: threading.Event) -> None:
    """Move money until it is to stop, twenty times a second at most, while ``moved`` has room."""
    chance = random.Random(11)
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        spare = ACCOUNTS
        while not stop.wait(0.05):
            if moved.full():
                continue
            moved.put(None)
            one, other = chance.sample(NAMES, 2)
            by, spare = chance.randint(-50, 50), spare + 1
            with connection.transaction():
                for table, sum_ in ((one, by), (other, -by)):
                    ((key,),) = connection.execute(
                        f"SELECT id FROM {table} ORDER BY random() LIMIT 1"
                    ).fetchall()
                    connection.execute(
                        f"UPDATE {table} SET amount = amount + {sum_} WHERE id = {key}"
                    )
                    if chance.random() < 0.2:
                        connection.execute(f"UPDATE {table} SET id = {spare} WHERE id = {key}")
                    elif chance.random() < 0.2:
                        connection.execute(
                            f"WITH gone AS (DELETE FROM {table} WHERE id = {key} RETURNING *)"
                            f" INSERT INTO {table} SELECT {spare}, amount, note, secret FROM gone"
                        )
