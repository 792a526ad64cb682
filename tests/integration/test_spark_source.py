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
from tests.harness.changelog import WrittenLog, relation
from tests.harness.command import run_program
from tests.harness.profile_query import patiently
from tests.harness.servers import spark_jars
from tests.harness.source_log import PEOPLE, SourceLog
from tests.integration.test_spark_profiles import Shop

from waltap_spark import pipelines

# --- batches and streams --------------------------------------------------------------------------

OTHER = relation("sales.other", [("id", "int8"), ("_note", "text")], oid=99)
BARE = relation("public.bare", [], key=(), identity="f")
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


class Log(SourceLog):
    """A change log, the server behind it, and Spark that reads it."""

    def __init__(self, folder: Path, spark: Any) -> None:
        super().__init__(folder)
        self.spark = spark
        self.got: list[list[tuple[Any, ...]]] = []

    def read(self, **options: Any) -> Any:
        reader = self.spark.read.format("waltap").option("path", self.path)
        return reader.options(**options).load()

    def query(self, fails: bool = False, **options: Any) -> Any:
        """Run a query until it has all there is; each batch's names are added to ``got``."""
        reader = self.spark.readStream.format("waltap").option("path", self.path)
        frame = reader.options(**{"table": PEOPLE.name, **options}).load()

        def take(rows: Any, number: int) -> None:
            if fails and number == 1:
                raise ValueError("the target is full")
            self.got.append([(number, *each) for each in rows.select("name").collect()])

        def query() -> Any:
            started = (
                frame.writeStream.foreachBatch(take)
                .option("checkpointLocation", str(self.folder / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            assert started.awaitTermination(240), "it does not end"
            return started

        return patiently(query)

    def streamed(self) -> list[str]:
        """Return the number of each batch that had rows, and their names."""
        return [f"{part[0][0]} {''.join(name for _n, name in part)}" for part in self.got if part]


@pytest.fixture
def log(spark, tmp_path) -> Iterator[Log]:
    made = Log(tmp_path, spark)
    yield made
    made.close()


def test_every_type_has_its_column_and_its_value(log):
    log.insert(EVERY, [value for _name, _kind, value in TYPES], ["2", *[None] * 10])
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
    log.insert(OTHER, ["7", "x"])
    rows = {row._table: row for row in log.read(tables="public.*, sales.*").collect()}
    assert rows["public.every"]["public.every"].id == 2
    assert rows["public.every"]["sales.other"] is None
    assert rows["sales.other"]["sales.other"].asDict() == {"id": 7, "_note": "x"}
    log.insert(BARE, [], [])
    rows = log.read(tables="public.*, sales.*").where("_table = 'public.bare'").collect()
    assert [row["public.bare"].asDict() for row in rows] == [{}, {}]


def test_a_stream_goes_on_from_its_checkpoint_in_batches_of_whole_flushes(log):
    """A batch that failed is read again as it was; changes that the log lacks end a query."""
    for names in ("ab", "c", "def", "g"):
        log.people(*names)
    with pytest.raises(Exception, match="the target is full"):
        log.query(maxRowsPerBatch=3, reader="night", fails=True)
    log.people("h")
    query = log.query(maxRowsPerBatch=10, reader="night")
    assert log.streamed() == ["0 abc", "1 def", "2 gh"]
    reported = json.loads(query.lastProgress["sources"][0]["latestOffset"])
    last = log.newest.log_position
    assert reported["end_lsn"] == last.end_lsn
    assert reported["behind_bytes"] == reported["behind_ms"] == 0
    log.sink.record_gap(PEOPLE.name)
    log.people("i")
    with pytest.raises(Exception, match="WT-5272 public.people was not captured") as caught:
        log.query(reader="night")
    assert "Traceback" not in str(caught.value), "the message is not behind a worker's stack"
    reader = log.log.readers.get("night")
    assert last <= reader.log_position, "what the query is done with need not stay"


# --- Spark Connect --------------------------------------------------------------------------------

CONNECT_CLIENT = "-m", "tests.integration.connect_client"


def test_a_client_applies_and_reads(spark_connect, tmp_path, database):
    shop = Shop(database, tmp_path)
    shop.insert(1, 2)
    with WrittenLog(tmp_path).open() as log:
        log.db.insert(PEOPLE, ["1", "Ann"], ["2", "Bob"])
        log.db.update(PEOPLE, ["2"], name="Bert")
        log.flush(log.db.commit())
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


class Client(WrittenLog):
    """A process that runs pipelines over a log, and the database behind that."""

    def __init__(self, address: str, folder: Path) -> None:
        super().__init__(folder)
        self.open(has_offset=True)
        self._said = folder / "client.log"
        (folder / "storage").mkdir()
        words = [address, self.path, folder / "storage", spark_jars.CATALOGUE]
        with self._said.open("w") as said:
            self._process = subprocess.Popen(
                [sys.executable, CLIENT, *words],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True,
            )  # fmt: skip

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
        super().close()


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
    client.flush(db.commit())
    for pipeline in ("auto_cdc", "delta"):
        assert client.run(pipeline) == {"rows": client.model()}, pipeline
    db.delete(ORDERS, ["1"])
    db.update(ORDERS, ["3"], state="paid")
    db.update(ORDERS, ["3"], state="sent")
    client.flush(db.commit())
    db.insert(ORDERS, ["1", "again", "d"])
    client.flush(db.commit())
    assert client.run("auto_cdc") == {"rows": client.model()}
    db.update(ORDERS, ["3"], state="back", unsent=["note"])
    client.flush(db.commit())
    assert client.run("delta") == {"rows": client.model()}

    def refused() -> None:
        wrong = pipelines.changes(client.path, "public.orders").writeStream.format("noop")
        wrong = wrong.option("checkpointLocation", str(client.folder / "wrong"))
        wrong.trigger(availableNow=True).start().awaitTermination(240)

    with pytest.raises(Exception, match="WT-5256 a change of public.orders lacks values"):
        patiently(refused)


# --- the examples ---------------------------------------------------------------------------------

EXAMPLES = Path(__file__).parents[2] / "examples" / "spark"


@pytest.mark.needs_java
def test_an_application_applies_and_a_job_reads(java, tmp_path):
    with WrittenLog(tmp_path).open() as log:
        log.db.insert(PEOPLE, ["1", "Ann"], ["2", "Bob"])
        log.db.delete(PEOPLE, ["2"])
        log.flush(log.db.commit())
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
    done = patiently(lambda: run_program(*command, cwd=copy, env=os.environ | variables))
    return str(done.stdout + done.stderr)


def _run(name: str, *arguments: object) -> str:
    return str(patiently(lambda: run_program(sys.executable, EXAMPLES / name, *arguments)).stdout)
