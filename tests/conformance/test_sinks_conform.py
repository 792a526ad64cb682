"""Every sink of ours keeps the kit's promises."""

import gzip
import json

import orjson
import pytest
from pyarrow import parquet
from tests.harness.http_receiver import Receiver

import waltap.plugin
import waltap_kafka.plugin
import waltap_lake.plugin
import waltap_sinks.plugin
import waltap_spark.plugin
import waltap_streams.plugin
from waltap.files.store import FileStore
from waltap.format.record import Record
from waltap.sink.jsonl import JsonLinesProperties
from waltap_sinks.changelog import ChangeLog, ChangeLogProperties
from waltap_sinks.changelog.table_version import LOG_COLUMNS
from waltap_sinks.files.properties import FilesProperties
from waltap_sinks.http.properties import HttpProperties
from waltap_spark.properties import SparkProperties
from waltap_spark.sink import changelog_of
from waltap_testing.sink_suite import DeliveredChange, SinkRig, SinkSuite

SPECS = {
    spec.name: spec
    for plugin in (
        waltap.plugin,
        waltap_sinks.plugin,
        waltap_spark.plugin,
        waltap_kafka.plugin,
        waltap_lake.plugin,
        waltap_streams.plugin,
    )
    for spec in plugin.register_sinks()
}
KEEP_NOTHING = {"null", "terminal"}
"""By purpose: what cannot be read back cannot be lost or doubled."""


def lines(path):
    """Return the records of a file of JSON lines."""
    found = []
    for line in path.read_text().split("\n")[:-1] if path.exists() else ():
        item = json.loads(line)
        headers = tuple((h["key"], orjson.dumps(h["value"])) for h in item["headers"])
        key, value = (
            None if part is None else orjson.dumps(part) for part in (item["key"], item["value"])
        )
        found.append(Record(item["topic"], key, value, headers))
    return found


# [rig]
class TestJsonLines(SinkSuite):
    @pytest.fixture
    def new_rig(self):
        def make(folder):
            path = folder / "events.jsonl"
            return SinkRig(
                SPECS["jsonl"], JsonLinesProperties(path=str(path)), lambda: lines(path), asks=True
            )

        return make


# [/rig]


def changes(path):
    """Return the changes of a change log, as its readers see them."""
    log = ChangeLog(FileStore(str(path)))
    found = []
    for table in ("items", "notes", "kinds"):
        for part in log.rows("public", table):
            for row in part.to_pylist():
                values = {name: row[name] for name in row if not name.startswith("_")}
                found.append(DeliveredChange(f"public.{table}", row["_op"], values))
    return found


def lines_of_files(folder):
    """Return the records of a folder of files, table by table, as whoever reads every file has them."""
    found = []
    for path in sorted(folder.glob("table=*/date=*/*.jsonl.gz")):
        whole = folder / "plain"
        whole.write_bytes(gzip.decompress(path.read_bytes()))
        found += lines(whole)
    return found


class TestFiles(SinkSuite):
    @pytest.fixture
    def new_rig(self):
        def make(folder):
            path = folder / "files"
            return SinkRig(
                SPECS["files"],
                FilesProperties(path=str(path)),
                lambda: lines_of_files(path),
                asks=True,
            )

        return make


def rows_of_files(folder):
    """Return the changes in a folder of Parquet files, table by table, as whoever reads every file."""
    found = []
    for path in sorted(folder.glob("table=*/date=*/*.parquet")):
        table = path.parent.parent.name.removeprefix("table=public.")
        for row in parquet.ParquetFile(path).read().to_pylist():
            values = {name: value for name, value in row.items() if name not in LOG_COLUMNS}
            found.append(DeliveredChange(f"public.{table}", row["_op"], values))
    return found


class TestParquetFiles(SinkSuite):
    @pytest.fixture
    def new_rig(self):
        def make(folder):
            path = folder / "files"
            properties = FilesProperties.model_validate(
                {"path": str(path), "file.format": "parquet"}
            )
            return SinkRig(SPECS["files"], properties, lambda: rows_of_files(path), asks=True)

        return make


class TestChangeLog(SinkSuite):
    @pytest.fixture
    def new_rig(self):
        def make(folder):
            path = folder / "log"
            return SinkRig(
                SPECS["changelog"],
                ChangeLogProperties(path=str(path)),
                lambda: changes(path),
                asks=True,
            )

        return make


class TestSparkWithoutApplier(SinkSuite):
    """What the Spark sink does in the engine's process; appliers have tests of their own."""

    @pytest.fixture
    def new_rig(self):
        def make(folder):
            path = str(folder / "output")
            properties = SparkProperties(path=path, applier="none")
            return SinkRig(
                SPECS["spark"], properties, lambda: changes(changelog_of(path)), asks=True
            )

        return make


class TestHttp(SinkSuite):
    @pytest.fixture
    def new_rig(self):
        receivers = []

        def make(_folder):
            receiver = Receiver()
            receivers.append(receiver)

            def read():
                bodies = [json.loads(body) for _, body in receiver.taken]
                return [
                    Record(
                        item["topic"],
                        *(
                            None if p is None else orjson.dumps(p)
                            for p in (item["key"], item["value"])
                        ),
                        tuple((h["key"], orjson.dumps(h["value"])) for h in item["headers"]),
                    )
                    for body in bodies
                    for item in body
                ]

            properties = HttpProperties(url=receiver.url, body="array", tombstones=True)

            def unfit():
                receiver.judge = lambda body: 422 if b"unfit" in body else 200
                return "unfit"

            return SinkRig(SPECS["http"], properties, read, asks=True, unfit=unfit)

        yield make
        for receiver in receivers:
            receiver.stop()


def test_every_registered_sink_is_here():
    # kafka: test_kafka_conforms.py, sql: test_sql_conforms.py, lakes: test_lakes_conform.py,
    # streams: test_streams_conform.py
    tested = {"jsonl", "files", "changelog", "spark", "http", "kafka", "sql", "delta", "iceberg"}
    tested |= {"redis", "nats-jetstream", "kinesis"}
    assert set(SPECS) == tested | KEEP_NOTHING
