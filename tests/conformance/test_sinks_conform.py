"""Every sink of ours keeps the kit's promises."""

import contextlib
import gzip
import json
from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from pyarrow import parquet
from tests.harness.http_receiver import Receiver
from tests.harness.json_lines import records

import waltap.plugin
import waltap_kafka.plugin
import waltap_lake.plugin
import waltap_sinks.plugin
import waltap_spark.plugin
import waltap_streams.plugin
from waltap.base.files.store import FileStore
from waltap.changes.events.event import Record
from waltap.ports.sink.jsonl import JsonLinesProperties
from waltap_sinks.changelog import ChangeLog, ChangeLogProperties
from waltap_sinks.changelog.table_version import LOG_COLUMNS
from waltap_sinks.files.properties import FilesProperties
from waltap_sinks.http.properties import HttpProperties
from waltap_spark.config.properties import SparkProperties
from waltap_testing.sinks.losses import keeping
from waltap_testing.suites.sink import DeliveredChange, SinkRig, SinkSuite

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
    return [record(each) for each in records(path)]


def record(item: dict[str, Any]) -> Record:
    headers = tuple((h["key"], orjson.dumps(h["value"])) for h in item["headers"])
    sides = (None if item[n] is None else orjson.dumps(item[n]) for n in ("key", "value"))
    return Record(item["topic"], *sides, headers)


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
    tables = ("items", "notes", "kinds")
    rows = [(t, r) for t in tables for part in log.rows("public", t) for r in part.to_pylist()]
    return [change(t, r, {n: v for n, v in r.items() if not n.startswith("_")}) for t, r in rows]


def change(table, row, values):
    return DeliveredChange(f"public.{table}", row["_op"], values)


def lines_of_files(folder):
    """Return the records of a folder of files, table by table, as whoever reads every file has them."""
    found = []
    for path in sorted(folder.glob("table=*/date=*/*.jsonl.gz")):
        whole = folder / "plain"
        whole.write_bytes(gzip.decompress(path.read_bytes()))
        found += lines(whole)
    return found


def rows_of_files(folder):
    """Return the changes in a folder of Parquet files, table by table, as whoever reads every file."""
    found = []
    for path in sorted(folder.glob("table=*/date=*/*.parquet")):
        table = path.parent.parent.name.removeprefix("table=public.")
        for row in parquet.ParquetFile(path).read().to_pylist():
            values = {name: value for name, value in row.items() if name not in LOG_COLUMNS}
            found.append(change(table, row, values))
    return found


class InAFolder(SinkSuite):
    """A sink that writes to the folder ``path``, with these properties; ``read`` is what reads it back."""

    kind: str
    properties: type
    given: Mapping[str, str] = {}

    @staticmethod
    def read(path):
        raise NotImplementedError

    @pytest.fixture
    def new_rig(self):
        def make(folder):
            path = folder / "output"
            properties = self.properties.model_validate({"path": str(path), **self.given})
            return SinkRig(
                SPECS[self.kind],
                properties,
                lambda: self.read(path),
                asks=True,
                keep=keeping(path),
            )

        return make


class TestFiles(InAFolder):
    kind, properties, read = "files", FilesProperties, staticmethod(lines_of_files)


class TestParquetFiles(InAFolder):
    kind, properties, read = "files", FilesProperties, staticmethod(rows_of_files)
    given = {"file.format": "parquet"}


class TestChangeLog(InAFolder):
    kind, properties, read = "changelog", ChangeLogProperties, staticmethod(changes)


class TestSparkWithoutApplier(InAFolder):
    """What the Spark sink does in the engine's process; appliers have tests of their own."""

    kind, properties, given = "spark", SparkProperties, {"applier": "none"}

    @staticmethod
    def read(path):
        return changes(f"{path}/changelog")


del InAFolder


class TestHttp(SinkSuite):
    @pytest.fixture
    def new_rig(self):
        receivers = []

        def make(folder):
            receiver = Receiver()
            receivers.append(receiver)
            away = folder / "away"  # a file, since the sink may be in another process
            receiver.judge = lambda _body: 404 if away.exists() else 200

            @contextlib.contextmanager
            def failing():
                away.touch()
                yield
                away.unlink()

            def read():
                return [record(item) for _, body in receiver.taken for item in json.loads(body)]

            properties = HttpProperties(url=receiver.url, body="array", tombstones=True)

            def unfit():
                receiver.judge = lambda body: 422 if b"unfit" in body else 200
                return "unfit"

            return SinkRig(SPECS["http"], properties, read, asks=True, unfit=unfit, outage=failing)

        yield make
        for receiver in receivers:
            receiver.stop()


def test_every_registered_sink_is_here():
    # kafka: test_kafka_conforms.py, sql: test_sql_conforms.py, lakes: test_lakes_conform.py,
    # streams: test_streams_conform.py
    tested = {"jsonl", "files", "changelog", "spark", "http", "kafka", "sql", "delta", "iceberg"}
    tested |= {"redis", "nats-jetstream", "kinesis"}
    assert set(SPECS) == tested | KEEP_NOTHING
