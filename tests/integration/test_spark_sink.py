"""The Spark sink: a change log with a Spark process beside it, that is waited for and looked after."""

import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyarrow.parquet import ParquetFile
from tests.harness.changelog import Database, batch, context, relation

from waltap.source.position import Position
from waltap_sinks.changelog import ChangeLog, segment
from waltap_spark.errors import ApplierFailed, JavaMissing, JvmEnded
from waltap_spark.live import LiveTables
from waltap_spark.output import SparkOutput
from waltap_spark.properties import SparkProperties
from waltap_spark.session import prepare
from waltap_spark.sink import SparkSink, changelog_of, tables_of

NUMBERS = relation("public.odd", [("id", "int4"), ("v", "int4")])
WIDE = relation("public.wide", [("id", "int4"), ("v", "text")])
TEXTS = relation("public.odd", [("id", "int4"), ("v", "text")])


def sink(folder: Path, memory: str = "512m", **properties: Any) -> SparkSink:
    settings = SparkProperties(
        path=str(folder / "lake"),
        master="local[2]",
        settings={"spark.driver.memory": memory},
        **properties,
    )
    return SparkSink(settings, context(folder / "state", resumes=True))


def of_another_log(folder: Path) -> None:
    """Let the tables be made from another change log, which no driver gets over."""
    output = SparkOutput(tables_of(str(folder / "lake")))
    output.commit(msgspec.structs.replace(output.open("elsewhere"), number=1))
    output.close()


def test_close_waits_until_spark_has_applied_everything(
    spark: Any, java: Path, tmp_path: Path
) -> None:
    db, made = Database(), sink(tmp_path)
    assert made.open() is None
    for number in range(3):
        db.insert(NUMBERS, [str(number), "1"])
        part = db.commit()
        made.write(batch(part))
        assert made.flush() == Position(part.end_lsn)
    made.close()
    made.close()
    tables = LiveTables(prepare(spark), SparkOutput(tables_of(str(tmp_path / "lake"))))
    assert tables.current("odd").count() == 3
    again = sink(tmp_path, applier="none")
    assert again.open() == Position(part.end_lsn)
    again.close()


def test_an_error_that_spark_cannot_get_over_ends_the_run_with_its_words(
    java: Path, tmp_path: Path
) -> None:
    of_another_log(tmp_path)
    db, made = Database(), sink(tmp_path)
    made.open()
    db.insert(NUMBERS, ["1", "1"])
    last = db.commit()
    made.write(batch(last))
    made.flush()
    limit = time.monotonic() + 300
    with pytest.raises(ApplierFailed, match=r"WT-5202 .*WT-5206 .* made from .* elsewhere, not .*"):
        while time.monotonic() < limit:
            made.flush()
            time.sleep(0.05)
    made.close()
    mark = ChangeLog(changelog_of(str(tmp_path / "lake"))).last()
    assert mark is not None
    assert mark.mark.end_lsn == last.end_lsn, "what was published stays"


def test_an_error_that_comes_while_spark_is_waited_for_is_the_runs(
    java: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """But for a run that ends by another, of which it is told."""
    of_another_log(tmp_path)
    db = Database()
    for ends_by_another in (False, True):
        made = sink(tmp_path)
        made.open()
        db.insert(NUMBERS, ["1", "1"])
        made.write(batch(db.commit()))
        made.flush()
        if ends_by_another:
            with pytest.raises(KeyboardInterrupt):
                try:
                    raise KeyboardInterrupt
                finally:
                    made.close()
        else:
            with pytest.raises(ApplierFailed, match=r"WT-5202 .*WT-5206"):
                made.close()
        made.close()
    (told,) = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert "WT-5202" in told


def write_long_rows(db: Database, made: SparkSink) -> None:
    """300 rows of one megabyte, and one short one of another table."""
    made.open()
    db.insert(NUMBERS, ["1", "1"])
    made.write(batch(db.commit()))
    text = os.urandom(500_000).hex()
    for number in range(300):
        db.insert(WIDE, [str(number), text[number:] + text[:number]])
    made.write(batch(db.commit()))


def test_long_rows_need_no_memory_for_all_of_them(spark: Any, java: Path, tmp_path: Path) -> None:
    """Spark reads 4096 rows at once: the log, and what Spark writes, have them in pages and groups of few."""
    made = sink(tmp_path)
    write_long_rows(Database(), made)
    made.flush()
    made.close()
    (changes,) = tmp_path.glob("lake/tables/**/wide/**/part-*.parquet")
    written = ParquetFile(changes).metadata
    groups = [written.row_group(n).total_byte_size for n in range(written.num_row_groups)]
    assert max(groups) < 40 << 20
    tables = LiveTables(prepare(spark), SparkOutput(tables_of(str(tmp_path / "lake"))))
    assert [tables.current(name).count() for name in ("odd", "wide")] == [1, 300]


def test_a_driver_without_memory_is_told_of_and_leaves_no_half_of_a_table(
    spark: Any, java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waltap_spark.process.RESTARTS", 0)
    monkeypatch.setattr(segment, "PAGE_BYTES", 1 << 40)  # one page, as earlier versions wrote it
    made = sink(tmp_path)
    write_long_rows(Database(), made)
    limit = time.monotonic() + 400
    with pytest.raises(JvmEnded, match=r"WT-5248 .* out of memory\. .* which is 512m\)"):
        while time.monotonic() < limit:
            made.flush()
            time.sleep(0.05)
    made.close()
    output = SparkOutput(tables_of(str(tmp_path / "lake")))
    assert (state := output.state()) is None or "public.wide" not in state.tables
    output.close()
    with_more = sink(tmp_path, memory="2g")
    with_more.open()
    with_more.close()
    tables = LiveTables(prepare(spark), SparkOutput(tables_of(str(tmp_path / "lake"))))
    assert [tables.current(name).count() for name in ("odd", "wide")] == [1, 300]


def test_a_table_that_cannot_follow_is_told_of_and_the_run_goes_on(
    java: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waltap_spark.process.LOOK_S", 0.1)
    db, made = Database(), sink(tmp_path)
    made.open()
    db.insert(NUMBERS, ["1", "1"])
    made.write(batch(db.commit()))
    db.insert(TEXTS, ["2", "two"])
    made.write(batch(db.commit()))
    made.flush()
    limit = time.monotonic() + 300
    while not any("public.odd stands still" in r.getMessage() for r in caplog.records):
        assert time.monotonic() < limit
        made.flush()
        time.sleep(0.05)
    made.close()
    (told,) = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert "WT-5208 not applied: public.odd: WT-5205 column v of public.odd changed" in told
    assert "type.change = string" in told


def test_without_java_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing):
        sink(tmp_path).open()
    assert not (tmp_path / "lake").exists()
