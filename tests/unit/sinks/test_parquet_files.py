"""The sink ``files``: what is promised is in its files, which are below its folder."""

from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from pyarrow import parquet
from tests.harness.changelog import Database as Model
from tests.harness.changelog import batch, context, relation

from waltap.changes.capture.capture import CaptureRules
from waltap.changes.capture.properties import CaptureProperties
from waltap.changes.events.event import Record
from waltap.changes.transactions.position import Position, Positions
from waltap.changes.transactions.transaction import Batch
from waltap.pipeline.runtime.leadership import LeaseLost
from waltap_sinks.files.properties import FilesProperties
from waltap_sinks.files.sink import FilesSink


def opened(folder: Path, given: dict[str, str], **more: Any) -> FilesSink:
    properties = FilesProperties.model_validate({"path": str(folder / "files"), **given})
    sink = FilesSink(properties, context(folder, **more))
    sink.open()
    return sink


PARQUET = {"file.format": "parquet"}


def test_a_change_without_a_byte_is_in_a_file_when_it_is_promised(tmp_path):
    source = Model()
    source.truncate(relation("public.orders", [("id", "int4")]))
    part = source.commit()
    with closing(opened(tmp_path, PARQUET)) as sink:
        sink.write(batch(part))
        promised = sink.flush()
    assert promised
    assert Positions.of(promised, "")[""].end_lsn == part.end_lsn
    (file,) = (tmp_path / "files").glob("table=*/date=*/*.parquet")
    assert parquet.ParquetFile(file).read(["_op"]).to_pylist() == [{"_op": "t"}]


@pytest.mark.parametrize("topic", [".", "../.."])
def test_a_topic_of_a_row_leads_to_no_folder_but_its_own(tmp_path, topic):
    records = [Record(topic, b"{}", b"{}")]
    with closing(opened(tmp_path, {"layout": "{topic}", "compression": "none"})) as sink:
        sink.write(Batch(parts=[], position=Position(1), events=1, records=records))
        sink.flush()
    (file,) = tmp_path.rglob("*.jsonl")
    assert file.parent.parent == tmp_path / "files"


def test_tables_that_share_a_topic_have_a_folder_each(tmp_path):
    capture = CaptureRules(CaptureProperties.model_validate({"topic.prefix": "shop"}))
    assert capture.topic("public", "ж") == capture.topic("public", "я")
    source = Model()
    for name in ("ж", "я"):
        source.insert(relation(f"public.{name}", [("id", "int4")]), ["1"])
    with closing(opened(tmp_path, PARQUET | {"layout": "table={table}"}, capture=capture)) as sink:
        sink.write(batch(source.commit()))
        sink.flush()
    folders = {unquote(file.parent.name) for file in tmp_path.rglob("*.parquet")}
    assert folders == {"table=public.ж", "table=public.я"}


def test_a_start_leaves_nothing_of_a_flush_that_broke_off(tmp_path):
    source = Model()
    source.insert(relation("public.orders", [("id", "int4")]), ["1"])
    changes = batch(source.commit())
    for writes in count():
        folder = tmp_path / f"{writes}"
        left = iter(range(writes))

        def may_write(left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise LeaseLost("another process has it")

        with closing(opened(folder, PARQUET, may_write=may_write)) as sink:
            sink.write(changes)
            try:
                sink.flush()
                break
            except LeaseLost:
                pass
        opened(folder, PARQUET).close()
        assert list(folder.glob("files/table=*/date=*/*")) == []
    assert writes > 4
