"""Files and change logs, in folders and in a real S3 server: faults included, and read by DuckDB, Polars and pyarrow."""

import datetime as dt
import gzip
import json
import os
import runpy
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from shutil import rmtree
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyarrow import dataset, fs, parquet
from tests.harness.changelog import logged_ids
from tests.harness.command import waltap
from tests.harness.dead_letters import verified
from tests.harness.door import Door, s3_door
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database
from tests.harness.servers.s3 import Login, S3Server

from waltap.base.files.errors import (
    AccessRefused,
    BucketMissing,
    FilesInUse,
    FilesUnavailable,
    ObjectStoreUnavailable,
)
from waltap.base.files.properties import StorageProperties
from waltap.base.files.store import FileStore
from waltap.errors import SinkError
from waltap_sinks.files.sink import FilesGone, parse


@pytest.fixture
def door(s3) -> Iterator[Door]:
    with s3_door(s3.url) as made:
        yield made


def storage(s3: S3Server) -> StorageProperties:
    return StorageProperties.model_validate(s3.properties())


class Orders(PipelineRig):
    """A pipeline into a bucket: as files, or as a change log."""

    def __init__(self, database: Database, folder: Path, s3: S3Server, bucket: str) -> None:
        super().__init__(database, folder)
        self.s3, self.bucket = s3, bucket
        self.sink("files")

    def sink(self, kind: str = "", **given: Any) -> None:
        """Choose the kind, which is that of before unless given, the ``bucket``, and how its store is reached."""
        self.kind = kind or self.kind
        path = f"s3://{given.pop('bucket', self.bucket)}/orders"
        settings = self.s3.properties(**given) | {"type": self.kind, "path": path}
        settings["storage.max.attempts"] = "2"
        settings["file.max.age.ms"] = "0" if self.kind == "files" else None
        self.settings |= {f"sink.{name}": value for name, value in settings.items()}

    def paths(self, below: str, *, recursive: bool = False) -> list[str]:
        folder = f"{self.bucket}/orders/{below}"
        selector = fs.FileSelector(folder, allow_not_found=True, recursive=recursive)
        return sorted(info.path for info in self.s3.files().get_file_info(selector))

    def read(self, path: str) -> bytes:
        with self.s3.files().open_input_stream(path, compression=None) as stream:
            return bytes(stream.read())

    def delivered(self) -> list[int]:
        """Return the ids in every file of the table, as whoever reads every file has them."""
        if self.kind == "changelog":
            return self.promised()
        found = []
        for path in self.paths("table=public.t", recursive=True):
            if path.endswith(".jsonl.gz"):
                text = gzip.decompress(self.read(path)).decode()
                assert text.endswith("\n"), path
                found += [json.loads(line)["value"]["after"]["id"] for line in text.splitlines()]
        return found

    def promised(self) -> list[int]:
        """Return the ids in files that commits name: what counts while a pipeline runs."""
        if self.kind == "changelog":
            return logged_ids(FileStore(f"s3://{self.bucket}/orders", storage(self.s3)))
        commits = [parse(self.read(path), path) for path in self.paths("_waltap/commits")]
        files = [f"{self.bucket}/orders/{each.path}" for commit in commits for each in commit.files]
        found = [
            json.loads(line)
            for path in files
            for line in gzip.decompress(self.read(path)).splitlines()
        ]
        return [line["value"]["after"]["id"] for line in found if line["value"]["after"]]

    def refused(self, kind: type[SinkError]) -> SinkError:
        with pytest.raises(kind) as caught:
            self.run(**{"errors.max.retries": 0})
        assert "anything" not in str(caught.value), "a secret is reported"
        return caught.value


@pytest.fixture
def pipeline(database, tmp_path, s3, bucket) -> Orders:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, name text)")
    return Orders(database, tmp_path, s3, bucket)


@pytest.fixture(params=["files", "changelog"])
def orders(request, pipeline) -> Orders:
    """Return the pipeline into each kind."""
    pipeline.sink(request.param)
    return pipeline


def test_files_are_read_as_a_partitioned_dataset(pipeline, s3, bucket):
    """As DuckDB, Polars and Athena do: partitions by the names of folders, `_waltap` not looked at."""
    database = pipeline.database
    pipeline.catch_up()
    pipeline.deliver("CREATE TABLE u (id int PRIMARY KEY)")
    database.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b'); INSERT INTO u VALUES (7)")
    pipeline.settings["sink.compression"] = "none"
    pipeline.settings["sink.line"] = "value"
    pipeline.catch_up()
    schema = pa.schema({"op": pa.string(), "table": pa.string(), "date": pa.date32()})
    found = dataset.dataset(
        f"{bucket}/orders",
        filesystem=s3.files(),
        format="json",
        schema=schema,
        partitioning=dataset.partitioning(flavor="hive"),
    ).to_table()
    assert sorted(found["table"].to_pylist()) == ["public.t", "public.t", "public.u"]
    assert set(found["op"].to_pylist()) == {"c"}
    assert found["date"].null_count == 0


def test_the_environment_may_say_where_the_store_is(s3, bucket, monkeypatch):
    given = s3.properties()
    monkeypatch.setenv("AWS_ENDPOINT_URL", str(given.pop("storage.endpoint")))
    store = FileStore(f"s3://{bucket}/here", StorageProperties.model_validate(given))
    store.publish("one", b"found")
    assert store.read("one") == b"found"


def test_whoever_reads_a_change_log_by_its_profile_reaches_the_store_as_the_sink_does(
    pipeline, database
):
    database.execute("INSERT INTO t VALUES (1)")
    pipeline.sink("changelog")
    del pipeline.settings["sink.file.max.age.ms"]
    pipeline.catch_up()
    reported = verified(pipeline)
    assert reported.returncode == 0, reported.stdout + reported.stderr
    shown = waltap("changelog", "list", "p.toml", cwd=pipeline.folder)
    assert shown.returncode == 0, shown.stderr
    assert "public.t" in shown.stdout


def test_small_reads_are_tried_again_where_a_refusal_is_longer_than_what_was_asked_for(
    s3, bucket, door
):
    given = {**s3.properties(url=door.url), "storage.max.attempts": 12}
    store = FileStore(f"s3://{bucket}/small", StorageProperties.model_validate(given))
    with store.create("few") as stream:
        stream.write(b"few bytes")
    with store.create("rows") as stream:
        parquet.write_table(pa.table({"n": range(10)}), stream)
    door.share = 0.25
    for _ in range(8):
        assert store.read("few") == b"few bytes"
        assert store.read_parquet("rows")["n"].to_pylist() == list(range(10))
        found = [batch["n"].to_pylist() for batch in store.parquet_batches("rows", 4)]
        assert found == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert door.failed > 5


# --- refusals ---------------------------------------------------------------------------------------


def test_a_bucket_that_is_not_there_is_reported_at_the_start(orders):
    orders.sink(bucket="no-such-bucket")
    error = orders.refused(BucketMissing)
    assert error.code == "WT-5122"
    assert "no-such-bucket" in error.problem
    assert "Make the bucket" in error.advice()


def test_a_bucket_that_goes_ends_the_run_and_confirms_nothing_more(orders, database, s3, bucket):
    orders.catch_up()
    orders.deliver("INSERT INTO t VALUES (1)")
    with pytest.raises(BucketMissing) as caught, orders.running() as run:
        s3.files().delete_dir_contents(bucket)
        s3.files().delete_dir(bucket)
        database.execute("INSERT INTO t VALUES (2)")
        run.join()
    assert caught.value.code == "WT-5122"
    assert "committed up to " in caught.value.problem
    s3.files().create_dir(bucket)  # back, and empty: what was confirmed is gone with it
    error = orders.refused(SinkError)
    assert orders.kind == "changelog" or (type(error), "no commits" in error.problem) == (
        FilesGone, True
    )  # fmt: skip


def test_wrong_credentials_are_reported_at_the_start(orders, s3):
    good = s3.make_login()
    s3.ask_for_login(True)
    try:
        for wrong in (Login("nobody", "anything"), Login(good.key, "anything")):
            orders.sink(login=wrong)
            error = orders.refused(AccessRefused)
            assert error.code == "WT-5123"
            assert "storage.secret.key" in error.advice()
        orders.sink(login=good)
        orders.catch_up()
    finally:
        s3.ask_for_login(False)


def test_an_endpoint_that_is_away_is_reported_at_the_start_and_waited_for_later(
    orders, database, door
):
    """Later, one that throttles, too."""
    orders.sink(url=door.url)
    for answer, kind in ((418, "Teapot"), FilesUnavailable), ((400, "ExpiredToken"), AccessRefused):
        door.answer = answer
        orders.refused(kind)
    door.answer, door.away = None, True
    assert orders.refused(ObjectStoreUnavailable).code == "WT-5121"
    door.away = False
    orders.catch_up()
    for number, (name, value) in enumerate({"away": True, "answer": (503, "SlowDown")}.items(), 1):
        well = getattr(door, name)
        with orders.running() as run:
            setattr(door, name, value)
            database.execute(f"INSERT INTO t VALUES ({number})")
            run.until(lambda met=run.notices.failures: met, "a failure")
            setattr(door, name, well)
            run.until(lambda rows=[1, 2][:number]: orders.promised() == rows, "the row")
        error, retried = run.notices.failures[0]
        assert (type(error), retried) == (ObjectStoreUnavailable, True)
    assert "SlowDown" in error.advice()


def test_a_file_whose_upload_was_refused_is_not_there(s3, bucket, door, monkeypatch):
    given = {**s3.properties(url=door.url), "storage.max.attempts": "1"}
    store = FileStore(f"s3://{bucket}/orders", StorageProperties.model_validate(given))
    faults = iter(["503"])  # the upload in parts cannot begin
    monkeypatch.setattr(door, "fault", lambda _login: next(faults, None))
    with pytest.raises(ObjectStoreUnavailable):
        store.put("large", bytes(16 << 20))
    assert not store.has("large")


def test_the_name_of_a_table_does_not_change_what_an_error_means(s3, bucket, door):
    given = {**s3.properties(url=door.url), "storage.max.attempts": "1"}
    store = FileStore(f"s3://{bucket}/orders", StorageProperties.model_validate(given))
    door.answer = (503, "SlowDown")
    for write in (store.put, store.publish):
        with pytest.raises(ObjectStoreUnavailable, match="ExpiredToken"):
            write("table=public.ExpiredToken/1.jsonl", b"1")


def test_one_process_of_a_machine_writes_a_place(s3, bucket, tmp_path, monkeypatch):
    """An object store keeps no locks: the next engine must not write beside what a killed one left."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    first, second, beside = (
        FileStore(f"s3://{bucket}/{name}", storage(s3)) for name in ("one", "one/", "other")
    )
    first.lock(".lock")
    beside.lock(".lock")
    with pytest.raises(FilesInUse, match=f"in use by process {os.getpid()}"):
        second.check(".lock")
    with pytest.raises(FilesInUse, match=f"in use by process {os.getpid()}"):
        second.lock(".lock")
    first.unlock()
    second.check(".lock")
    second.lock(".lock")
    assert second.locked()
    rmtree(tmp_path / "waltap")  # that says nothing of the bucket
    assert second.locked()
    second.unlock()
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")  # where no file is kept, nobody is seen
    first.lock(".lock")
    second.lock(".lock")


def test_an_instance_without_its_lease_publishes_nothing(s3, bucket):
    """A file in a bucket is there when its stream ends: the lease is asked for before that. Of folders the sink
    suite sees it."""
    store, other = (FileStore(f"s3://{bucket}/orders", storage(s3)) for _ in range(2))

    def lost() -> None:
        raise SinkError("the lease is lost")

    store.publish("manifests/1", b"first")
    store.may_write = lost
    with pytest.raises(SinkError, match="the lease is lost"):
        store.publish("manifests/2", b"second")
    assert other.names("manifests") == ["1"]


# --- files, read by one pattern and without waltap -----------------------------------------------------


TABLE = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE kinds (
  id bigint PRIMARY KEY, b bool, i2 int2, i4 int4, f8 float8, n numeric(20, 5), t text, bin bytea, d date,
  ts timestamp(3), tt timestamptz, u uuid, j jsonb, a int[], ta text[], e mood
);
CREATE TABLE "odd name/ü" (id int PRIMARY KEY);
"""
ROW = """
INSERT INTO kinds VALUES (1, true, -1, 2, 1e300, 12345.67891, E'a\\n"ü😀', '\\x00ff', '2024-02-29',
  '2024-02-29 12:30:00.123', '1969-12-31 23:59:59.999999+00', '0b5f1a2c-3d4e-4f60-8a7b-000000000001',
  '{"b": [1]}', '{1,NULL,3}', '{"a,b",NULL}', 'ok'),
  (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)
"""
EXPECTED: dict[str, Any] = {
    "id": 1,
    "b": True,
    "i2": -1,
    "i4": 2,
    "f8": 1e300,
    "n": Decimal("12345.67891"),
    "t": 'a\n"ü😀',
    "bin": b"\x00\xff",
    "d": dt.date(2024, 2, 29),
    "ts": dt.datetime(2024, 2, 29, 12, 30, 0, 123000),
    "tt": dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC),
    "u": "0b5f1a2c-3d4e-4f60-8a7b-000000000001",
    "j": '{"b": [1]}',
    "a": [1, None, 3],
    "ta": ["a,b", None],
    "e": "ok",
}
EXAMPLES = Path(__file__).parents[2] / "examples" / "files"
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "files-and-object-stores.md"
FAR = dt.date(2999, 1, 1)


def written(database: Database, folder: Path) -> tuple[PipelineRig, Path]:
    """Return a pipeline that writes Parquet files, and their folder."""
    files = folder / "lake" / "orders"
    settings = {
        "schema.include.list": "public",
        "sink.type": "files",
        "sink.path": str(files),
        "sink.file.format": "parquet",
        "sink.file.max.age.ms": "0",
    }
    pipeline = PipelineRig(database, folder, settings)
    pipeline.catch_up()
    return pipeline, files


def spoil(files: Path) -> None:
    for table, day in (("public.kinds", FAR), ("public.zz", "2026-01-01")):
        folder = files / f"table={table}" / f"date={day}"
        folder.mkdir(parents=True)
        (folder / "0000000099-0-0001.parquet").write_bytes(b"no such file")


def reported(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without what the log adds, as Python has its values."""
    found = {name: value for name, value in row.items() if name in EXPECTED}
    for name, value in found.items():
        if isinstance(value, dt.datetime) and value.tzinfo is not None:
            found[name] = value.astimezone(dt.UTC)
    return found


def by_duckdb(query: str, *, rows: bool = True) -> list[Any]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        found = connection.sql(query)
        names = found.columns
        return [dict(zip(names, row, strict=True)) if rows else row for row in found.fetchall()]


def test_every_type_in_parquet_is_what_the_source_has_for_every_reader(database, tmp_path):
    """Folders name partitions: files of others, which cannot be read, are not looked at."""
    database.execute(TABLE)
    pipeline, files = written(database, tmp_path)
    database.execute(ROW)
    pipeline.deliver('INSERT INTO "odd name/ü" VALUES (7)')
    spoil(files)
    pattern = f"{files}/table=*/date=*/*.parquet"

    rows = by_duckdb(
        f"SELECT * FROM read_parquet('{pattern}', hive_partitioning = true)"
        f" WHERE \"table\" = 'public.kinds' AND date < '{FAR}' ORDER BY id"
    )
    nulls = {name: None for name in EXPECTED} | {"id": 2}
    assert [reported(row) for row in rows] == [EXPECTED, nulls]
    assert [row["_op"] for row in rows] == ["c", "c"]
    (odd,) = by_duckdb(
        f"SELECT id FROM read_parquet('{pattern}', hive_partitioning = true)"
        " WHERE \"table\" = 'public.odd name/ü'"
    )
    assert odd == {"id": 7}

    parts = pa.schema({"table": pa.string(), "date": pa.date32()})
    found = dataset.dataset(str(files), partitioning=dataset.partitioning(parts, flavor="hive"))
    mine = (dataset.field("table") == "public.kinds") & (dataset.field("date") < FAR)
    assert [reported(row) for row in found.to_table(filter=mine).sort_by("id").to_pylist()] == [
        EXPECTED,
        nulls,
    ]


def test_the_queries_of_the_page_give_what_it_says(database, tmp_path, monkeypatch):
    """Of a table that has got a column, a new key, a delete and a truncate meanwhile."""
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, total numeric(10, 2), note text)")
    pipeline, _files = written(database, tmp_path)
    pipeline.deliver(
        "INSERT INTO orders VALUES (9, 9, 'gone')",
        "TRUNCATE orders",
        "INSERT INTO orders VALUES (1, 10, 'a'), (2, 20, 'b'), (3, 30, 'c')",
    )
    pipeline.deliver(
        "ALTER TABLE orders ADD paid bool",
        "UPDATE orders SET total = 11, paid = true WHERE id = 1",
        "UPDATE orders SET id = 4 WHERE id = 3",
        "DELETE FROM orders WHERE id = 2",
    )
    expected = database.execute("SELECT id, total, paid FROM orders ORDER BY id")
    monkeypatch.chdir(tmp_path)
    day, now = (part.partition("```")[0] for part in PAGE.read_text().split("```sql\n")[1:])
    (first, *_) = sorted((tmp_path / "lake/orders/table=public.orders").iterdir())
    today = first.name.removeprefix("date=")
    ((count,),) = by_duckdb(day.replace("2026-03-01", today), rows=False)
    assert count == 6, "inserts and updates of one day"
    assert [(row["id"], row["total"], row["paid"]) for row in by_duckdb(now)] == expected
    for program in ("polars_rows.py", "pyarrow_rows.py"):
        names = runpy.run_path(str(EXAMPLES / program))
        assert [(r["id"], r["total"], r["paid"]) for r in names["current"]] == expected
