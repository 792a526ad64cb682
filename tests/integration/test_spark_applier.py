"""Tables kept by Spark equal the source's tables after every commit, whatever happened to them."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.harness.changelog import context, relation
from tests.harness.remade_tables import COURSES as REMADE
from tests.harness.remade_tables import (
    a_default_need_not_fit_the_type_of_a_former_column as default,
)
from tests.harness.spark import Rig

from waltap.changes.mapping.type_mapping import TypeOptions
from waltap.changes.mapping.type_registry import TypeRegistry
from waltap_postgres.types import TYPE_SPECS
from waltap_sinks.changelog import ChangeLog, ChangeLogProperties, ChangeLogSink
from waltap_spark.apply.applier import OutputApplier
from waltap_spark.errors import OutputDamaged, OutputInUse, OutputMismatch, TableUnknown
from waltap_spark.read.live import LiveTables
from waltap_spark.state.output import SparkOutput

PEOPLE = relation("public.people", [("id", "int4"), ("name", "text"), ("note", "text")])
EVENTS = relation("public.events", [("kind", "text"), ("n", "float8")], key=(), identity="f")
DATA_PAGE_V2 = b"\x15\x06"


@pytest.fixture
def rig(spark, tmp_path) -> Rig:
    return Rig(tmp_path, spark)


@pytest.mark.parametrize("course", [*REMADE, default], ids=lambda course: course.__name__)
def test_a_table_that_is_made_anew(rig, course):
    course(rig)


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_numbers_beyond_38_digits_stop_nothing(delta, tmp_path, table_format):
    """Text in Spark; also from a log that has wide decimals, as earlier versions wrote them: copies of
    segments that Spark does not read are gone with their commit."""
    wide = relation("public.wide", [("id", "int4"), ("n", "numeric(60,10)"), ("u", "numeric")])
    number = "9" * 40 + "." + "1" * 10
    rig = Rig(tmp_path, delta, table_format)
    rig.db.insert(wide, ["1", number, "1" * 50 + ".5"])
    rig.insert(PEOPLE, ["1", "a", None])
    rig.check(wide, PEOPLE)
    rig.applier.close()
    rig.sink.close()
    other = tmp_path / "other"
    rig = Rig(other, delta, table_format)
    rig.sink.close()
    options = TypeOptions(arrow_unconstrained_numeric="decimal256")
    settings = replace(context(other, has_offset=True), types=TypeRegistry(TYPE_SPECS, options))
    rig.sink = ChangeLogSink(ChangeLogProperties(path=str(other / "log")), settings)
    rig.sink.open()
    rig.db.insert(wide, ["1", number, None])
    rig.db.insert(PEOPLE, ["1", "a", None])
    rig.commit()
    rig.update(wide, ["1"], n="-" + number)
    rig.check(wide, PEOPLE)
    assert {path for path in rig.folders() if "/delta/" not in path} == rig.named_folders()


def test_rows_that_are_only_added_are_never_written_again(spark, tmp_path):
    """Their change sets are the base, merged with others as the history is."""
    rig = Rig(tmp_path, spark, compact_rows=0, compact_sets=1, merge_sets=3, retention_s=0.0)
    for number in range(5):
        rig.db.insert(PEOPLE, [str(number), "x", None])
        rig.insert(EVENTS, ["a", "1.5"])
    rig.check(PEOPLE, EVENTS)
    for name in ("people", "events"):
        table = rig.output.table(name)
        assert [part.path for part in table.base] == [change.path for change in table.changes]
        assert sorted(part.rows for part in table.base) == [1, 1, 3]
    assert not list((tmp_path / "out").glob("tables/*/*/current/*"))
    rig.update(PEOPLE, ["2"], name="y")
    rig.check(PEOPLE, EVENTS)


# --- crashes and company ------------------------------------------------------------------------------


def test_a_first_commit_says_how_far_it_is(rig, caplog):
    rig.db.insert(PEOPLE, ["1", "a", None])
    rig.db.insert(EVENTS, ["a", "1.5"])
    rig.commit()
    with caplog.at_level(logging.INFO):
        rig.apply()
    said = [each for each in caplog.messages if each.startswith("table ")]
    assert [each.partition(":")[0] for each in said] == ["table 1 of 2", "table 2 of 2"]


def test_readers_see_all_tables_at_one_point(rig):
    rig.insert(PEOPLE, ["1", "a", None])
    tables = LiveTables(rig.spark, rig.output)
    assert tables.register() == ["people"]
    rig.insert(PEOPLE, ["2", "b", None])
    assert rig.spark.sql("select count(*) from people").first()[0] == 1
    tables.refresh().register()
    assert rig.spark.sql("select count(*) from people").first()[0] == 2
    assert rig.spark.sql("select count(*) from people_changes").first()[0] == 2
    rig.insert(EVENTS, ["a", "1.5"])
    shutil.rmtree(rig.folder / "out/tables/public/people")
    assert tables.refresh().register() == ["events"], "one that cannot be read hides no other"
    views = rig.spark.sql("show views").collect()
    assert [each["viewName"] for each in views] == ["events", "events_changes"]


def test_what_is_not_there_not_free_not_its_own_or_not_whole_is_named(rig):
    """A table, an output that another process has, one of another change log, and a commit."""
    rig.insert(PEOPLE, ["1", "a", None])
    with pytest.raises(TableUnknown, match=r"no table nope .* public\.people"):
        LiveTables(rig.spark, rig.output).current("nope")
    with pytest.raises(OutputInUse, match="process"):
        OutputApplier(rig.spark, rig.log, SparkOutput(str(rig.folder / "out"))).open()
    rig.applier.close()
    with pytest.raises(OutputMismatch):
        OutputApplier(rig.spark, ChangeLog(str(rig.folder / "other")), rig.output).open()
    (commit,) = (rig.folder / "out" / "_waltap" / "commits").iterdir()
    commit.write_text("{")
    with pytest.raises(OutputDamaged, match=r"WT-5204 .* is not a commit"):
        rig.output.state()


def first_page(file: Path) -> bytes:
    """Return how the header of the first data page begins: field 1, an integer, and the page's type."""
    from pyarrow import parquet

    column = parquet.read_metadata(file).row_group(0).column(0)
    return file.read_bytes()[column.data_page_offset :][:2]


def test_wide_rows_are_read(rig):
    """Their files have data pages of Parquet's second form."""
    wide = relation("public.wide", [("id", "int4"), ("a", "text"), ("b", "text")])
    texts = [chr(97 + n) * (n << 20) for n in (2, 3, 5)]
    rig.write(wide, *[[str(n), text, None] for n, text in enumerate(texts)])
    assert first_page(next(rig.folder.glob("log/**/*.parquet"))) == DATA_PAGE_V2
    rig.apply(wide)
    rig.db.update(wide, ["1"], unsent=["a"], b="é" * (2 << 20))
    rig.db.update(wide, ["2"], a="z")
    rig.db.delete(wide, ["0"])
    rig.follow(wide)
