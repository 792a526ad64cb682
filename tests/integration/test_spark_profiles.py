"""``format("waltap").option("profile", …)``: engines in the reader, on real servers; each row once, whatever
is killed. Most of it goes as Spark's planner process calls a reader; one query is Spark's own."""

import datetime as dt
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.pipeline import profile_text, until
from tests.harness.servers.postgres import Database

from waltap.changes.transactions.position import lsn_text
from waltap.errors import WaltapError
from waltap_spark.errors import CapturedByAnotherProcess, OffsetOfAnother, SourceOption
from waltap_spark.read import hosted
from waltap_spark.read.data_source import ChangeLogSource
from waltap_spark.read.options import parse_options
from waltap_spark.read.profiles import ProfilesStream, hosts_of

LIMIT_S = 120.0


class Shop:
    """A database, its profile, and readers of it."""

    def __init__(
        self, database: Database, folder: Path, name: str = "shop", **properties: str
    ) -> None:
        self.database, self.folder, self.name = database, folder, name
        database.execute("CREATE TABLE orders (id int PRIMARY KEY, state text)")
        database.execute("CREATE TABLE visits (id int PRIMARY KEY)")
        self.file = folder / f"{name}.toml"
        source = {
            "type": "postgres",
            "table.include.list": "public.orders",
            "slot.name": f"{name}_{database.name}",
            "waltap.state.dir": str(folder / "state"),
            "offset.flush.interval.ms": 50,
            "status.update.interval.ms": 500,
            **database.properties(),
            **properties,
        }
        sink = {"type": "jsonl", "path": str(folder / "none.jsonl")}
        self.file.write_text(profile_text(name, source, sink))
        self.readers: list[ProfilesStream] = []

    def insert(self, *ids: int) -> None:
        values = ", ".join(f"({number}, 'new')" for number in ids)
        self.database.execute(f"INSERT INTO orders VALUES {values}")

    def visits(self, *ids: int) -> None:
        values = ", ".join(f"({number})" for number in ids)
        self.database.execute(f"INSERT INTO visits VALUES {values}")

    def reader(self, *others: "Shop", **options: str) -> ProfilesStream:
        files = ",".join(str(each.file) for each in (self, *others))
        given = {"profile": files, "table": "public.orders", **options}
        source = ChangeLogSource(given)
        made = source.streamReader(source.schema())
        assert isinstance(made, ProfilesStream)
        self.readers.append(made)
        return made

    @staticmethod
    def engine(reader: ProfilesStream) -> Any:
        pipeline = reader._private_logs[0].host._pipeline
        return pipeline.status().partitions[0]

    def confirmed(self) -> int:
        ((lsn,),) = self.database.execute(
            "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE database = current_database()"
        )
        return int(lsn)

    def cut(self) -> None:
        """Break the link of the engine, and wait until the server has noticed."""
        self.database.execute(f"SELECT pg_terminate_backend({self.reader_pid()}, 60000)")

    def reader_pid(self) -> int:
        found = self.database.execute(
            "SELECT active_pid FROM pg_replication_slots WHERE database = current_database()"
        )
        return int(found[0][0] or 0)

    def reported(self) -> int:
        """What the link has reported as written: with that it has reported what is flushed."""
        found = self.database.execute(
            f"SELECT coalesce(write_lsn - '0/0', 0) FROM pg_stat_replication WHERE pid = {self.reader_pid()}"
        )
        return int(found[0][0]) if found else 0

    def wal(self) -> int:
        ((lsn,),) = self.database.execute("SELECT pg_current_wal_lsn() - '0/0'")
        return int(lsn)


@pytest.fixture
def shop(database, tmp_path) -> Iterator[Shop]:
    made = Shop(database, tmp_path)
    yield made
    for each in made.readers:
        each.stop()


def rows(reader: ProfilesStream, start: Any, end: Any) -> list[tuple[Any, ...]]:
    """The rows of a batch as its tasks read them, offsets gone through JSON as in a checkpoint."""
    start, end = json.loads(json.dumps(start)), json.loads(json.dumps(end))
    found = []
    for task in reader.partitions(start, end):
        for part in reader.read(task):
            found += [(row["id"], row["_op"], row["_source"]) for row in part.to_pylist()]
    return sorted(found)


def batch_after(reader: ProfilesStream, start: Any) -> Any:
    """Ask as a trigger does, until there are rows."""
    limit = time.monotonic() + LIMIT_S
    while True:
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        if rows(reader, start, end):
            return end
        assert time.monotonic() < limit, "no rows came"
        start = end
        time.sleep(0.02)


def test_the_columns_are_those_of_the_catalogue_before_anything_was_captured(shop, tmp_path):
    """With the private log the sink of the profile is not looked at."""
    given = {"profile": str(shop.file), "table": "public.orders"}
    reported = ChangeLogSource(given).schema().simpleString()
    assert reported.startswith("struct<id:int,state:string,_op:string,_commit_lsn:bigint,")
    assert reported.endswith("_epoch:int,_generation:int,_source:string>")
    assert shop.database.execute("SELECT count(*) FROM pg_replication_slots") == [(0,)]
    shop.file.write_text(shop.file.read_text().replace('"jsonl"', '"not.here"'))
    private = {**given, "changelogLocation": str(tmp_path / "private_logs")}
    assert "_source" in ChangeLogSource(private).schema().names
    with pytest.raises(WaltapError, match="not.here"):
        ChangeLogSource(given).schema()


def test_the_slot_is_confirmed_when_spark_has_committed_and_an_idle_query_holds_none(shop):
    shop.insert(1, 2)
    reader = shop.reader()
    first = batch_after(reader, reader.initialOffset())
    assert rows(reader, reader.initialOffset(), first) == [(1, "r", "shop"), (2, "r", "shop")]
    second = reader.latestOffset(first, reader.getDefaultReadLimit())  # the first is committed
    shop.insert(3)
    third = batch_after(reader, second)
    before = third["profiles"]["shop"]["end_lsn"] - 1
    until(lambda: shop.engine(reader).durable.end_lsn > before, "it is not stored")
    assert shop.engine(reader).confirmed_lsn <= before, "Spark has not committed what it was given"
    assert shop.confirmed() <= before
    shop.cut()
    until(lambda: shop.reported() > before, "the new link has reported nothing yet")
    assert shop.confirmed() <= before, "a reconnect reported what Spark has not committed"
    until(
        lambda: (
            reader.latestOffset(third, reader.getDefaultReadLimit()) == third
            and shop.confirmed() > before
        ),
        "the slot is not confirmed",
    )
    after = shop.wal()
    shop.database.execute("CREATE TABLE other AS SELECT 1")
    until(
        lambda: (
            reader.latestOffset(third, reader.getDefaultReadLimit()) == third
            and shop.confirmed() > after
        ),
        "an idle query holds WAL",
    )
    with pytest.raises(SourceOption, match="WT-5221 startingTime is of a change log or a batch"):
        shop.reader(startingTime="2026-01-01")


BOTH = {"table.include.list": "public.orders,public.visits"}


@pytest.fixture
def busy(database, tmp_path) -> Iterator[Shop]:
    """A profile that captures a table more than the query reads."""
    made = Shop(database, tmp_path, **BOTH)
    yield made
    for each in made.readers:
        each.stop()


def available_now(shop: Shop, at: Any) -> tuple[list[tuple[Any, ...]], Any]:
    """A query that ends with what there is, from ``at``; its rows, and where it ended."""
    reader = shop.reader()
    found = drained(reader, at)
    reader.stop()
    return found


def drained(reader: ProfilesStream, at: Any = None) -> tuple[list[tuple[Any, ...]], Any]:
    """Read from ``at`` what there is; return the rows, and where they ended."""
    reader.prepareForTriggerAvailableNow()
    got, at = [], at or reader.initialOffset()
    while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
        got += rows(reader, at, end)
        at = end
    return got, at


@pytest.fixture
def forgetful(monkeypatch) -> None:
    """Private logs that throw away at once what they need no more."""
    monkeypatch.setattr(hosted, "RETENTION", dt.timedelta(minutes=-30))
    monkeypatch.setattr(hosted, "EXPIRE_EVERY_S", 0.0)


@pytest.mark.usefixtures("forgetful")
def test_queries_go_on_from_their_checkpoint_however_often_only_other_tables_changed(busy):
    """A job that ends, and a query that does not."""
    busy.insert(1)
    got, at = available_now(busy, None)
    assert got == [(1, "r", "shop")]
    for day in range(2):
        busy.visits(2 * day)
        busy.visits(2 * day + 1)
        got, moved = available_now(busy, at)
        assert got == []
        assert moved != at, "the private log keeps for ever what other tables have"
        at = moved
    for visit in (5, 6):
        reader = busy.reader()
        assert reader.latestOffset(at, reader.getDefaultReadLimit()) == at
        before = busy.wal()
        busy.visits(visit)
        until(
            lambda reader=reader, before=before: (
                reader.latestOffset(at, reader.getDefaultReadLimit()) == at
                and busy.confirmed() > before
            ),
            "the slot waits for a table that the query does not read",
        )
        reader.stop()
    busy.insert(2)
    assert available_now(busy, at)[0] == [(2, "c", "shop")]


def test_the_slot_moves_on_while_none_of_the_tables_was_captured(database, tmp_path):
    quiet = Shop(database, tmp_path, **BOTH, **{"snapshot.mode": "no_data"})
    reader = quiet.reader()
    try:
        limit, at = reader.getDefaultReadLimit(), reader.initialOffset()
        assert reader.latestOffset(at, limit) == at
        until(lambda: any(quiet.database.slots().values()), "a reader of the slot")
        quiet.visits(1)
        until(lambda: reader.latestOffset(at, limit) != at, "the offset stays")
        at = reader.latestOffset(at, limit)
        assert at["profiles"]["shop"]["log"], "a private log that is lost would not be missed"
        assert quiet.reader().partitions(reader.initialOffset(), at) == []
        before = quiet.wal()
        quiet.visits(2)
        until(
            lambda: reader.latestOffset(at, limit) == at and quiet.confirmed() > before,
            "the slot waits for a table that nobody changes",
        )
        quiet.insert(1)
        assert rows(reader, at, batch_after(reader, at)) == [(1, "c", "shop")]
    finally:
        for each in quiet.readers:
            each.stop()


@pytest.mark.usefixtures("forgetful")
def test_a_second_query_that_may_not_run_throws_nothing_away(shop):
    shop.insert(1)
    first = shop.reader()
    begin = batch_after(first, first.initialOffset())
    shop.insert(2)
    batch_after(first, begin)
    shop.insert(3)
    limit = first.getDefaultReadLimit()
    until(
        lambda: len(rows(first, begin, first.latestOffset(begin, limit))) == 2, "they do not come"
    )
    end = first.latestOffset(begin, limit)
    second = shop.reader()
    for _look in range(20):
        assert second.latestOffset(end, limit) == end
    assert rows(first, begin, end) == [(2, "c", "shop"), (3, "c", "shop")]


def test_the_private_log_of_another_checkpoint_is_refused_before_anything_is_captured(
    shop, tmp_path
):
    shop.insert(1)
    reader = shop.reader()
    first = batch_after(reader, reader.initialOffset())
    reader.stop()
    other = shop.reader(changelogLocation=str(tmp_path / "elsewhere"))
    with pytest.raises(OffsetOfAnother, match="WT-5222"):
        other.latestOffset(first, other.getDefaultReadLimit())
    with pytest.raises(OffsetOfAnother, match="WT-5222"):
        other.partitions(other.initialOffset(), first)


def test_several_profiles_are_read_side_by_side_and_end_with_what_there_is(shop, server, tmp_path):
    database = server.create_database(f"{shop.database.name}_b")
    try:
        second = Shop(database, tmp_path, "depot")
        shop.insert(1, 2)
        second.insert(7)
        reader = shop.reader(second)
        got, _ = drained(reader)
        assert sorted(got) == [(1, "r", "shop"), (2, "r", "shop"), (7, "r", "depot")]
        reported = reader.reportLatestOffset()["profiles"]
        assert [reported[name]["behind_bytes"] for name in ("depot", "shop")] == [0, 0]
        reader.stop()
    finally:
        database.drop()


def test_a_column_that_one_of_several_profiles_has_is_null_in_the_others(shop, server, tmp_path):
    database = server.create_database(f"{shop.database.name}_b")
    try:
        second = Shop(database, tmp_path, "depot")
        given = {"profile": f"{shop.file},{second.file}", "table": "public.orders"}

        def batch() -> list[tuple[Any, ...]]:
            source = ChangeLogSource(given)
            reader: Any = source.reader(source.schema())
            parts = [part for task in reader.partitions() for part in reader.read(task)]
            found = [row for part in parts for row in part.to_pylist()]
            return sorted((row["id"], row["_source"], row.get("more")) for row in found)

        assert batch() == []
        shop.insert(1)
        second.insert(2)
        assert batch() == [(1, "shop", None), (2, "depot", None)]
        shop.database.execute("ALTER TABLE orders ADD COLUMN more int")
        shop.database.execute("INSERT INTO orders VALUES (3, 'new', 9)")
        with pytest.raises(WaltapError, match="WT-5224 public.orders got columns at .*: more"):
            batch()
        known = [(1, "shop", None), (2, "depot", None), (3, "shop", 9)]
        assert batch() == known
        database.execute("ALTER TABLE orders ADD COLUMN more int")
        database.execute("INSERT INTO orders VALUES (4, 'new', 8)")
        assert batch() == [*known, (4, "depot", 8)]
        database.execute("ALTER TABLE orders ALTER COLUMN more TYPE text")
        database.execute("INSERT INTO orders VALUES (5, 'new', 'x')")
        with pytest.raises(WaltapError, match="WT-5224|WT-5269"):
            batch()
        with pytest.raises(SourceOption, match="other types in depot .* before it: more"):
            batch()
    finally:
        database.drop()


def test_a_batch_captures_what_there_is_and_reads_the_private_log(shop):
    """Each reads from its beginning, or from where it is reported; the slot follows it."""

    def batch(**options: str) -> list[tuple[int, str, str]]:
        source = ChangeLogSource({"profile": str(shop.file), "table": "public.orders", **options})
        reader: Any = pickle.loads(pickle.dumps(source.reader(source.schema())))
        tasks = pickle.loads(pickle.dumps(reader.partitions()))
        parts = [part for task in tasks for part in reader.read(task)]
        return sorted(
            (row["id"], row["_op"], row["_source"]) for part in parts for row in part.to_pylist()
        )

    assert batch() == [], "there is nothing yet, and no slot: the table is known all the same"
    shop.insert(1, 2)
    between = shop.wal()
    assert batch() == [(1, "c", "shop"), (2, "c", "shop")]
    shop.insert(3)
    assert batch() == [(1, "c", "shop"), (2, "c", "shop"), (3, "c", "shop")]
    assert shop.confirmed() > between
    after = lsn_text(between)
    shop.insert(4)
    assert [each[0] for each in batch(startingPosition=after)] == [3, 4]
    assert batch(endingTime="2026-01-01") == []
    other = shop.file.with_name("depot.toml")
    other.write_text(shop.file.read_text().replace("shop", "depot"))
    with pytest.raises(SourceOption, match="a position is of one profile"):
        batch(profile=f"{shop.file},{other}", startingPosition=after)
    shop.visits(1)
    shop.database.execute("ALTER TABLE orders ADD COLUMN n int DEFAULT 5")
    shop.database.execute("INSERT INTO orders VALUES (5, 'new', 6)")
    with pytest.raises(WaltapError, match="got columns"):
        batch()
    assert [each[0] for each in batch()] == [1, 2, 3, 4, 5]
    assert available_now(shop, None)[0][-1] == (5, "c", "shop"), "a stream has the same private log"
    shop.database.execute("INSERT INTO orders VALUES (6, 'new', 6)")
    with pytest.raises(CapturedByAnotherProcess, match="was captured into"):
        batch(changelogLocation=str(shop.folder / "another"))
    assert [each[0] for each in batch()] == [1, 2, 3, 4, 5, 6], "nothing of it went there"


def test_a_new_checkpoint_begins_with_what_the_private_log_still_has(shop):
    for number in (1, 2):
        shop.insert(number)
        source = ChangeLogSource({"profile": str(shop.file), "table": "public.orders"})
        source.reader(source.schema()).partitions()
    (host,) = hosts_of(parse_options({"profile": str(shop.file), "table": "public.orders"}))
    last = host.log.last()
    assert host.log.expire(last.log_position, "9") > 0, "what an earlier query had committed"
    left = sum(each.rows for each in host.log.manifests(host.log.begin))
    shop.insert(3)
    found, end = available_now(shop, None)
    ids = [each[0] for each in found]
    assert (1 not in ids, ids[-1], len(ids)) == (True, 3, left + 1)
    assert available_now(shop, end)[0] == []


def test_what_the_engine_fails_with_ends_the_query(shop):
    reader = shop.reader()
    shop.database.execute("DROP TABLE orders")
    start = reader.initialOffset()
    with pytest.raises(Exception, match=r"WT-\d+"):
        until(lambda: reader.latestOffset(start, None) is None, "it does not end")


def test_a_query_whose_driver_is_killed_in_a_batch_goes_on_with_each_row_once(
    spark, shop, tmp_path
):
    got = tmp_path / "got"
    got.mkdir()
    shop.insert(1, 2, 3)
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.profile_query", shop.file, got],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said,
            text=True, start_new_session=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip
    try:
        assert process.stdout is not None
        number = 10
        for line in process.stdout:
            if line == "held\n":
                break
            shop.insert(number, number + 1, number + 2)  # more than a batch takes
            number += 10
        else:
            raise AssertionError((tmp_path / "said").read_text()[-3000:])
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    lost = json.loads((got / "0002.json").read_text())
    (got / "0002.json").unlink()
    shop.database.execute("UPDATE orders SET state = 'late' WHERE id = 1")
    shop.insert(99)

    from tests.harness import profile_query

    def query() -> Any:
        started = profile_query.start(spark, str(shop.file), got, ends=True)
        assert started.awaitTermination(240), "it does not end"
        return started

    ended = profile_query.patiently(query)
    assert json.loads((got / "0002.json").read_text()) == lost, "the batch is read as it was"
    rows = [row for path in sorted(got.glob("*.json")) for row in json.loads(path.read_text())]
    ids = [number for operation, number, _state in rows if operation != "u"]
    assert sorted(ids) == [
        row[0] for row in shop.database.execute("SELECT id FROM orders ORDER BY 1")
    ]
    assert [row for row in rows if row[0] == "u"] == [["u", 1, "late"]]
    reported = json.loads(ended.lastProgress["sources"][0]["latestOffset"])["profiles"]["shop"]
    assert reported["behind_bytes"] == 0
