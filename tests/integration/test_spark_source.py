"""``format("waltap")`` over a change log: batches, streams, Spark Connect, declarative pipelines, and the examples."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import dataset
from tests.harness.changelog import COMMIT_TS, Database, batch, context, relation
from tests.harness.command import run_program
from tests.harness.profile_query import patiently
from tests.harness.servers import spark_catalogue
from tests.integration.test_spark_profiles import Shop

from waltap.changes.transactions.position import lsn_text
from waltap_sinks.changelog import ChangeLog, ChangeLogProperties, ChangeLogSink
from waltap_spark import pipelines

# --- batches and streams --------------------------------------------------------------------------

PEOPLE = relation("public.people", [("id", "int4"), ("name", "text")], numbers=(1, 2))
OTHER = relation("sales.other", [("id", "int8"), ("_note", "text")], oid=99)
TYPES = [
    ("id", "int4", "1"),
    ("big", "int8", "9007199254740993"),
    ("flag", "bool", "t"),
    ("price", "numeric(10,2)", "12.30"),
    ("ratio", "float8", "0.5"),
    ("day", "date", "2013-02-08"),
    ("at", "timestamp", "2013-02-08 23:59:59.000001"),
    ("seen", "timestamptz", "2013-02-08 23:59:59.5+00"),
    ("blob", "bytea", "\\x00ff"),
    ("clock", "time", "05:17:00.25"),
    ("doc", "jsonb", '{"a": 1}'),
]
EVERY = relation("public.every", [(name, kind) for name, kind, _value in TYPES])


class Log:
    """A change log and the database behind it."""

    def __init__(self, folder: Path, spark: Any) -> None:
        self.folder, self.spark, self.db = folder, spark, Database()
        self.path = str(folder / "log")
        self.sink = ChangeLogSink(ChangeLogProperties(path=self.path), context(folder))
        self.sink.open()
        self.log = ChangeLog(self.path)
        self.got: list[list[tuple[Any, ...]]] = []

    def flush(self) -> None:
        self.sink.write(batch(self.db.commit()))
        self.sink.flush()

    def people(self, *names: str) -> None:
        first = len(self.db.rows.get(PEOPLE.name, [])) + 1
        for number, name in enumerate(names, first):
            self.db.insert(PEOPLE, [str(number), name])
        self.flush()

    def read(self, **options: Any) -> Any:
        reader = self.spark.read.format("waltap").option("path", self.path)
        return reader.options(**{"table": "public.people", **options}).load()

    def names(self, **options: Any) -> list[str]:
        rows = self.read(**options).select("_epoch", "_commit_lsn", "_seq", "name").collect()
        return [row["name"] for row in sorted(rows, key=lambda row: row[:3])]

    def stream(self, checkpoint: str = "checkpoint", fails: bool = False, **options: Any) -> Any:
        """Run a query until it has all there is; each batch's names are added to ``got``."""
        reader = self.spark.readStream.format("waltap").option("path", self.path)
        frame = reader.options(**{"table": "public.people", **options}).load()

        def take(rows: Any, number: int) -> None:
            if fails and number == 1:
                raise ValueError("the target is full")
            self.got.append([(number, *each) for each in rows.select("name", "_op").collect()])

        def query() -> Any:
            started = (
                frame.writeStream.foreachBatch(take)
                .option("checkpointLocation", str(self.folder / checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            assert started.awaitTermination(240), "it does not end"
            return started

        return patiently(query)

    def streamed(self) -> list[list[str]]:
        return [[name for _number, name, _op in part] for part in self.got if part]


@pytest.fixture
def log(spark, tmp_path) -> Iterator[Log]:
    made = Log(tmp_path, spark)
    yield made
    made.sink.close()


def test_every_type_has_its_column_and_its_value(log):
    log.db.insert(EVERY, [value for _name, _kind, value in TYPES], ["2", *[None] * 10])
    log.flush()
    frame = log.read(table="public.every")
    assert frame.schema.simpleString().startswith(
        "struct<id:int,big:bigint,flag:boolean,price:decimal(10,2),ratio:double,day:date,"
        "at:timestamp_ntz,seen:timestamp,blob:binary,clock:string,doc:string,_op:string,"
    )
    shown = frame.selectExpr(*[f"cast({name} as string)" for name, _k, _v in TYPES[:-3]])
    full, empty = (tuple(row) for row in shown.orderBy("id").collect())
    assert full == (
        "1", "9007199254740993", "true", "12.30", "0.5", "2013-02-08",
        "2013-02-08 23:59:59.000001", "2013-02-08 23:59:59.5",
    )  # fmt: skip
    assert empty == ("2", *[None] * 7)
    row = frame.where("id = 1").first()
    assert (bytes(row.blob), row.clock, row.doc) == (b"\x00\xff", "05:17:00.250000", '{"a": 1}')
    assert (row._op, row._seq, row._epoch, row._generation) == ("c", 0, 1, None)


def test_a_batch_begins_and_ends_where_it_is_reported(log):
    for name in "abcd":
        log.people(name)
    first = log.db.inserted(PEOPLE, ["11", "e"])
    log.db.insert(PEOPLE, ["12", "f"])
    log.sink.write(batch(first, log.db.commit()))  # two transactions in one flush
    log.sink.flush()
    log_positions = [step.log_position for step in log.log.manifests()]
    lsn = lsn_text(log_positions[1].end_lsn)
    within = lsn_text(first.end_lsn)
    assert log.names() == list("abcdef")
    assert log.names(startingPosition=str(log_positions[2])) == list("def")
    assert log.names(startingPosition=lsn, endingPosition=str(log_positions[3])) == list("cd")
    assert log.names(startingPosition=within) == ["f"], "cut between two transactions of a flush"
    assert log.names(endingPosition=within) == list("abcde")
    assert log.names(startingPosition="latest") == []
    moment = (COMMIT_TS + first.commit_lsn) / 1_000_000
    assert log.names(startingTime=_iso(moment)) == list("ef")
    assert log.names(endingTime=_iso(moment)) == list("abcde")


def _iso(seconds: float) -> str:
    import datetime as dt

    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat()


def test_a_snapshot_counts_when_it_is_complete(log):
    log.db.rows[PEOPLE.name] = [("1", "Ann"), ("2", "Bob")]
    pieces = log.db.snapshot(PEOPLE, rows_each=1)
    log.sink.write(pieces[0])
    log.sink.flush()
    assert log.names() == []
    for piece in pieces[1:]:
        log.sink.write(piece)
    log.sink.flush()
    assert log.names() == ["Ann", "Bob"]
    assert {row._generation for row in log.read().collect()} == {1}
    log.db.insert(PEOPLE, ["3", "Cid"])
    log.flush()
    assert sorted(log.names(skipReplaced="true")) == ["Ann", "Bob", "Cid"]


def test_several_tables_are_structs_of_their_columns(log):
    log.people("Ann")
    log.db.insert(OTHER, ["7", "x"])
    log.flush()
    many = log.spark.read.format("waltap").options(path=log.path, tables="public.*, sales.*").load()
    assert many.columns[:3] == ["_table", "public.people", "sales.other"]
    rows = {row._table: row for row in many.collect()}
    assert rows["public.people"]["public.people"].asDict() == {"id": 1, "name": "Ann"}
    assert rows["public.people"]["sales.other"] is None
    assert rows["sales.other"]["sales.other"].asDict() == {"id": 7, "_note": "x"}


def test_a_stream_ends_and_goes_on_from_its_checkpoint_in_batches_of_whole_flushes(log):
    for names in ("ab", "c", "def", "g"):
        log.people(*names)
    query = log.stream(maxRowsPerBatch=3, reader="night")
    assert log.streamed() == [["a", "b", "c"], ["d", "e", "f"], ["g"]]
    reported = json.loads(query.lastProgress["sources"][0]["latestOffset"])
    last = log.log.last()
    assert reported["end_lsn"] == last.log_position.end_lsn
    assert reported["behind_bytes"] == reported["behind_ms"] == 0
    log.got.clear()
    log.people("h")
    log.stream(maxRowsPerBatch=3, reader="night")
    assert log.streamed() == [["h"]]
    reader = log.log.readers.get("night")
    assert last.log_position <= reader.log_position, "what the query is done with need not stay"


def test_a_batch_that_failed_is_read_again_as_it_was(log):
    for name in "abc":
        log.people(name)
    with pytest.raises(Exception, match="the target is full"):
        log.stream(maxRowsPerBatch=1, fails=True)
    assert log.streamed() == [["a"]]
    log.people("d", "e")
    log.stream(maxRowsPerBatch=10)
    assert log.streamed() == [["a"], ["b"], ["c", "d", "e"]]
    assert [part[0][0] for part in log.got if part] == [0, 1, 2]


def test_changes_of_other_tables_do_not_hold_a_stream_up(log):
    log.people("a")
    for number in range(5):
        log.db.insert(OTHER, [str(number), "x"])
        log.flush()
    log.stream()
    assert log.streamed() == [["a"]]
    offsets = sorted(
        (log.folder / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda p: int(p.name)
    )
    last = log.log.last()
    assert (
        json.loads(offsets[-1].read_text().splitlines()[-1])["end_lsn"] == last.log_position.end_lsn
    )


def test_a_renamed_column_stays_and_a_new_one_stops_the_query_until_it_starts_again(log):
    log.people("a")
    renamed = relation("public.people", [("id", "int4"), ("called", "text")], numbers=(1, 2))
    log.db.insert(renamed, ["2", "b"])
    log.flush()
    rows = log.read().orderBy("id").select("id", "called").collect()
    assert [tuple(row) for row in rows] == [(1, "a"), (2, "b")]

    schema = log.read().schema
    columns = [("id", "int4"), ("called", "text"), ("more", "int4")]
    wider = relation("public.people", columns, numbers=(1, 2, 3))
    planner = _planner(log, schema)
    log.db.insert(wider, ["3", "c", "9"])
    log.flush()
    from waltap_spark.errors import ColumnsGrew

    with pytest.raises(ColumnsGrew, match=r"WT-5224 public.people got columns at .*: more"):
        planner.of_manifests(log.log.manifests())
    ignoring = _planner(log, schema, newColumns="ignore")
    assert (
        sum(
            part.rows
            for task in ignoring.of_manifests(log.log.manifests())
            for part in task.segments
        )
        == 3
    )
    assert log.read().where("more = 9").count() == 1


def test_changes_that_the_log_lacks_end_a_query_unless_it_reads_on_without_them(log):
    log.people("a")
    log.sink.record_gap("sales.other")  # of which nothing came before
    log.db.insert(OTHER, ["1", "x"])
    log.flush()
    assert log.read(table="sales.other").count() == 1
    log.stream()
    log.sink.record_gap("public.people")
    log.people("b")
    with pytest.raises(Exception, match="WT-5272 public.people was not captured for a while"):
        log.read().count()
    with pytest.raises(Exception, match="WT-5272") as caught:
        log.stream()
    assert "Traceback" not in str(caught.value), "the message is not behind a worker's stack"
    assert log.read(failOnDataLoss="false").count() == 2
    log.stream(failOnDataLoss="false")
    assert log.streamed() == [["a"], ["b"]]
    log.people("c")
    log.stream()
    assert log.streamed() == [["a"], ["b"], ["c"]], "later batches lack nothing"


def _planner(log: Log, schema: Any, **options: str) -> Any:
    from waltap_spark.read.options import parse_options
    from waltap_spark.read.tasks import TaskPlanner

    given = {"path": log.path, "table": "public.people", **options}
    return TaskPlanner(ChangeLog(log.path), parse_options(given), schema)


def test_a_table_that_is_not_there_is_named(log):
    log.people("a")
    with pytest.raises(Exception, match=r"WT-5223 .* has no table public.nobody.* public.people"):
        log.read(table="public.nobody")


# --- Spark Connect --------------------------------------------------------------------------------

CLIENTS = relation("public.people", [("id", "int4"), ("name", "text")])
CONNECT_CLIENT = "-m", "tests.integration.connect_client"


def test_a_client_applies_and_reads(spark_connect, tmp_path, database):
    shop = Shop(database, tmp_path)
    shop.insert(1, 2)
    db, log = (
        Database(),
        ChangeLogSink(ChangeLogProperties(path=str(tmp_path / "log")), context(tmp_path)),
    )
    log.open()
    db.insert(CLIENTS, ["1", "Ann"], ["2", "Bob"])
    db.update(CLIENTS, ["2"], name="Bert")
    log.write(batch(db.commit()))
    log.flush()
    log.close()
    places = tmp_path / "log", tmp_path / "out", shop.file
    done = run_program(sys.executable, *CONNECT_CLIENT, spark_connect, *places, wait=400)
    said = done.stdout.splitlines()
    assert said == [
        "applied 3",
        "views ['people']",
        "row 1 Ann",
        "row 2 Bert",
        "changes ['c', 'c', 'u']",
        "streamed 3",
        "captured [('r', 1, 'shop'), ('r', 2, 'shop')]",
        "streamed 2",
    ]


# --- declarative pipelines ------------------------------------------------------------------------

ORDERS = relation("public.orders", [("id", "int4"), ("state", "text"), ("note", "text")])
CLIENT = Path(__file__).with_name("pipelines_client.py")


class Client:
    """A process that runs pipelines over a log, and the database behind that."""

    def __init__(self, address: str, folder: Path) -> None:
        self.db, self.log, self._said = Database(), folder / "log", folder / "client.log"
        self._log = ChangeLogSink(
            ChangeLogProperties(path=str(self.log)), context(folder, has_offset=True)
        )
        self._log.open()
        (folder / "storage").mkdir()
        words = [address, self.log, folder / "storage", spark_catalogue.CATALOGUE]
        with self._said.open("w") as said:
            self._process = subprocess.Popen(
                [sys.executable, CLIENT, *words],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True,
            )  # fmt: skip

    def flush(self) -> None:
        self._log.write(batch(self.db.commit()))
        self._log.flush()

    def run(self, pipeline: str) -> dict[str, Any]:
        """Return what the target holds after a run, or its error; a run that a busy machine ended is
        followed by another, as people do."""
        while "failed to connect back" in str((answer := self._run(pipeline)).get("error", "")):
            pass
        return answer

    def _run(self, pipeline: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"run {pipeline}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, self._said.read_text()[-3000:]
        return json.loads(line)

    def model(self) -> list[list[Any]]:
        return sorted([int(str(row[0])), *row[1:]] for row in self.db.rows[ORDERS.name])

    def close(self) -> None:
        self._process.communicate(timeout=120)
        self._log.close()


@pytest.fixture
def client(spark_connect, delta, tmp_path) -> Iterator[Client]:
    made = Client(spark_connect, tmp_path)
    yield made
    made.close()


def test_pipelines_hold_what_the_source_holds_run_after_run(client, delta):
    """Upserts and deletes in the order of the source, whatever the run; what AUTO CDC would get wrong ends
    its stream, and the history with its view gets it right."""
    db = client.db
    db.insert(ORDERS, ["1", "new", "a"], ["2", "new", "b"], ["3", "new", "c"])
    db.update(ORDERS, ["2"], state="paid")
    client.flush()
    for pipeline in ("auto_cdc", "delta"):
        assert client.run(pipeline) == {"rows": client.model()}, pipeline
    db.delete(ORDERS, ["1"])
    db.update(ORDERS, ["3"], state="paid")
    db.update(ORDERS, ["3"], state="sent")
    client.flush()
    db.insert(ORDERS, ["1", "again", "d"])
    client.flush()
    assert client.run("auto_cdc") == {"rows": client.model()}
    db.update(ORDERS, ["3"], state="back", unsent=["note"])
    client.flush()
    assert client.run("delta") == {"rows": client.model()}

    def refused() -> None:
        wrong = pipelines.changes(str(client.log), "public.orders").writeStream.format("noop")
        wrong = wrong.option("checkpointLocation", str(client.log.parent / "wrong"))
        wrong.trigger(availableNow=True).start().awaitTermination(240)

    with pytest.raises(Exception, match="WT-5256 a change of public.orders lacks values"):
        patiently(refused)


# --- the examples ---------------------------------------------------------------------------------

EXAMPLES = Path(__file__).parents[2] / "examples" / "spark"
EXAMPLE = relation("public.people", [("id", "int4"), ("name", "text")])


@pytest.mark.needs_java
def test_an_application_applies_and_a_job_reads(java, tmp_path):
    db = Database()
    log = ChangeLogSink(ChangeLogProperties(path=str(tmp_path / "log")), context(tmp_path))
    log.open()
    db.insert(EXAMPLE, ["1", "Ann"], ["2", "Bob"])
    db.delete(EXAMPLE, ["2"])
    log.write(batch(db.commit()))
    log.flush()
    log.close()
    said = _run("apply_log.py", tmp_path / "log", tmp_path / "out")
    assert "3 rows applied" in said
    assert "0 rows applied" not in said
    said = _run("live_tables.py", tmp_path / "out", "public.people")
    assert "public.people holds 1 rows" in said
    assert "|  c|    2|" in said
    said = _run("change_stream.py", tmp_path / "log", "public.people", tmp_path / "stream")
    assert "3 changes in the log, 3 in the history" in said
    said = _pipeline(tmp_path)
    assert "Flow spark_catalog.default.orders has COMPLETED." in said
    assert "Run is COMPLETED." in said
    files = tmp_path / "pipeline" / "spark-warehouse" / "orders"
    assert dataset.dataset(files).to_table().to_pylist() == [{"id": 1, "name": "Ann"}]


def _pipeline(folder: Path) -> str:
    """Run the declarative pipeline as its users do, over the log in ``folder``."""
    copy = shutil.copytree(EXAMPLES / "pipeline", folder / "pipeline")
    spec = copy / "spark-pipeline.yml"
    text = spec.read_text().replace("/lake/changelog", str(folder / "log"))
    text = text.replace("/lake/pipeline", str(folder / "progress"))
    spec.write_text(text.replace("public.orders", "public.people"))
    command = Path(sys.executable).with_name("spark-pipelines"), "run", "--spec", spec
    variables = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = run_program(*command, cwd=copy, env=os.environ | variables)
    return done.stdout + done.stderr


def _run(name: str, *arguments: object) -> str:
    return run_program(sys.executable, EXAMPLES / name, *arguments).stdout
