"""Formats of tables: what a session needs for them, what is missing, names and types that they have."""

import datetime
import json
import sys
import time
from contextlib import nullcontext
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from tests.harness.command import run_program

from waltap.plugins.host import Host
from waltap_sinks.changelog.manifest import NOTHING
from waltap_spark.config.options import ApplyOptions
from waltap_spark.config.properties import DeltaTableProperties, IcebergTableProperties
from waltap_spark.errors import FormatNotReady, FormatUnknown, FormatUnsupported, TargetChanged
from waltap_spark.formats import TableFormatContext, stepwise
from waltap_spark.formats.choice import FormatChoice
from waltap_spark.formats.delta import DeltaFormat
from waltap_spark.formats.iceberg import IcebergFormat
from waltap_spark.formats.parquet import ParquetFormat
from waltap_spark.formats.small_files.delta import statistics
from waltap_spark.formats.small_files.rows import FileSchema
from waltap_spark.formats.stepwise import TableCommit
from waltap_spark.formats.table_format import CommitContext
from waltap_spark.schema.expression import LISTED, one_of
from waltap_spark.schema.schema import common_type
from waltap_spark.state.output import SparkOutput, TableState, TargetTable

PACKAGES = {"spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0"}


def test_formats_come_from_plugins_and_an_unknown_one_is_refused_with_the_known():
    assert FormatChoice().factory is ParquetFormat
    assert {"parquet", "delta", "iceberg"} <= set(Host().table_formats)
    with pytest.raises(FormatUnknown, match=r"no table format called hudi.*delta, .*parquet"):
        _ = FormatChoice("hudi").factory


ENGINE = """
import sys
import waltap_spark.cli.commands, waltap_spark.cli.status, waltap_spark.driver.mode_check
import waltap_spark.sink.output_monitor, waltap_spark.sink.sink
from waltap_spark.formats.choice import FormatChoice
FormatChoice("delta").settings("4.2.1", {"spark.jars": "delta.jar"})
FormatChoice("iceberg").settings("4.1.4", {"spark.jars": "iceberg.jar"})
print(sorted({"pyspark", "pandas", "numpy"} & set(sys.modules)))
"""


def test_an_engine_checks_a_format_without_loading_pyspark():
    assert run_program(sys.executable, "-c", ENGINE).stdout == "[]\n"


@pytest.mark.parametrize(
    ("name", "pyspark", "jars", "reported"),
    [
        ("delta", "4.2.1", {"spark.jars": "/o.jar"}, r"delta-spark_4\.2_2\.13:4\.4\.0"),
        ("delta", "4.1.4", {}, r"delta-spark_4\.1_2\.13:4\.4\.0"),
        ("iceberg", "4.1.4", {}, r"iceberg-spark-runtime-4\.1_2\.13"),
    ],
)
def test_missing_jars_are_named_with_what_brings_them(name, pyspark, jars, reported):
    with pytest.raises(FormatNotReady, match=reported) as refused:
        FormatChoice(name).settings(pyspark, jars)
    assert "spark.jars.packages" in str(refused.value)


RUNTIME = {"spark.jars.packages": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"}


@pytest.mark.parametrize(
    ("name", "pyspark", "reported"),
    [
        *(("delta", each, r"Delta on 4\.1 and 4\.2") for each in ("4.3.0", "4.0.5", "3.5.9")),
        *(("iceberg", each, r"Iceberg on 4\.1.*pyspark==4\.1\.\*") for each in ("4.2.1", "4.0.5")),
    ],
)
def test_a_pyspark_without_a_release_of_the_format_is_refused_with_the_table(
    name, pyspark, reported
):
    with pytest.raises(FormatUnsupported, match=reported):
        FormatChoice(name).settings(pyspark, PACKAGES if name == "delta" else RUNTIME)


def array(element: str) -> dict[str, object]:
    return {"type": "array", "elementType": element, "containsNull": True}


CONTEXT = TableFormatContext(output=SparkOutput("/lake"), options=ApplyOptions(), identity=str)


def delta(catalog: str = "") -> DeltaFormat:
    return DeltaFormat(DeltaTableProperties(catalog=catalog), CONTEXT)


def test_a_session_gets_what_iceberg_needs_beside_delta_and_its_catalogues():
    lake = "spark.sql.catalog.lake"
    mine = {
        **RUNTIME,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        lake: "org.apache.iceberg.spark.SparkCatalog",
        f"{lake}.type": "rest",
    }
    found = FormatChoice("iceberg").settings("4.1.4", mine)
    assert found["spark.sql.extensions"].split(",") == [
        "io.delta.sql.DeltaSparkSessionExtension",
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    ]
    assert found[f"{lake}.cache-enabled"] == "false"


def iceberg(catalog: str = "") -> IcebergFormat:
    return IcebergFormat(IcebergTableProperties(catalog=catalog), CONTEXT)


@pytest.mark.parametrize(
    ("made", "kind", "name"),
    [
        (delta(), "changes", "delta.`file:///lake/tables/we%2Eird/a%60b/delta/changes`"),
        (delta("unity.lake"), "changes", "`unity`.`lake`.`we.ird`.`a``b_changes`"),
        (delta("c"), "current", "`c`.`we.ird`.`a``b`"),
        (iceberg(), "changes", "`waltap_iceberg`.`we%2Eird`.`a%60b`.`changes`"),
        (iceberg("lake.raw"), "changes", "`lake`.`raw`.`we.ird`.`a``b_changes`"),
    ],
)
def test_a_table_is_known_by_its_folder_or_by_its_name_in_the_catalogue(made, kind, name):
    assert made.identifier(TableState(schema="we.ird", table="a`b"), kind) == name


def test_types_that_iceberg_has_not_are_stored_as_wider_ones_also_within_others():
    array = '{"type":"array","elementType":"%s","containsNull":true}'
    assert iceberg().stored('"short"') == '"integer"'
    assert iceberg().stored('"time(6)"') == '"string"'
    assert json.loads(iceberg().stored(array % "byte")) == json.loads(array % "integer")
    assert iceberg().stored('"timestamp_ntz"') == '"timestamp_ntz"'
    shapes = (
        '{"type":"struct","fields":[{"name":"short","type":"short","nullable":true,"metadata":{}}]}'
    )
    (field,) = json.loads(iceberg().stored(shapes))["fields"]
    assert (field["name"], field["type"]) == ("short", "integer")


@pytest.mark.parametrize(
    ("old", "new", "in_delta", "in_iceberg"),
    [
        ("short", "long", True, None),
        ("long", "integer", False, None),
        ("integer", "long", None, True),
        ("float", "double", True, True),
        ("integer", "double", True, False),
        ("long", "double", False, None),
        ("integer", "decimal(12,2)", True, None),
        ("long", "decimal(21,2)", False, None),
        ("decimal(10,2)", "decimal(12,4)", True, False),
        ("decimal(10,2)", "decimal(12,2)", None, True),
        ("decimal(10,2)", "decimal(10,4)", False, None),
        ("integer", "string", False, None),
        (array("integer"), "string", False, None),
        ("date", "timestamp", None, False),
    ],
)
def test_columns_that_can_grow_without_rewriting_rows(old, new, in_delta, in_iceberg):
    for made, expected in ((delta(), in_delta), (iceberg(), in_iceberg)):
        if expected is not None:
            assert made.widens(json.dumps(old), json.dumps(new)) is expected


@pytest.mark.parametrize(("made", "harmless"), [(delta(), "OPTIMIZE"), (iceberg(), "replace")])
def test_a_step_that_meets_a_compaction_is_written_again(monkeypatch, made, harmless):
    """But not behind another program's rows, nor after a failure for another reason."""
    table, target = TableState(schema="s", table="t"), TargetTable(at="t", version=6, step=2)
    commits = list[TableCommit]()
    monkeypatch.setattr(
        made, "commits", lambda _spark, after: [c for c in commits if c.version > after.version]
    )
    monkeypatch.setattr(made, "noted", lambda _spark, _note: nullcontext())
    monkeypatch.setattr(stepwise.time, "sleep", lambda _s: None)
    commit: Any = CommitContext(spark=None, number=1, log_position=NOTHING, attempt="")  # type: ignore[arg-type]
    others: list[str | None] = [harmless, harmless, "DELETE"]

    def write() -> None:
        tried.append(len(commits))
        if others:
            if (operation := others.pop(0)) is not None:
                commits.append(TableCommit(7 + len(commits), operation, None))
            raise PySparkException("in conflict, or no room")
        commits.append(TableCommit(7 + len(commits), "WRITE", made.note(commit, table, 3, target)))

    tried = list[int]()
    with pytest.raises(TargetChanged, match="DELETE, version 9"):
        made.take(commit, table, target, write, "rows")
    assert tried == [0, 1, 2]
    commits.clear()
    others.append(harmless)
    assert made.take(commit, table, target, write, "rows").version == 8
    others.append(None)
    tried.clear()
    with pytest.raises(PySparkException, match="no room"):
        made.take(commit, table, TargetTable(at="t", version=8, step=3), write, "rows")
    assert tried == [2]


@pytest.mark.parametrize("ahead_s", [-90_000.0, 40 * 86_400.0])
@pytest.mark.parametrize("made", [delta(), iceberg()])
def test_old_files_go_daily_also_after_a_clock_that_was_ahead(made, ahead_s):
    table = TableState(schema="s", table="t").with_storage(
        targets={"current": TargetTable(at="t")}, vacuumed=time.time() + ahead_s
    )
    commit: Any = None
    assert abs(made.maintain(commit, table).stored_table.vacuumed - time.time()) < 3600


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ("short", "integer", "integer"),
        ("integer", "long", "long"),
        ("float", "double", "double"),
        ("integer", "double", "double"),
        ("long", "double", None),
        ("integer", "float", None),
        ("decimal(10,2)", "decimal(12,1)", "decimal(13,2)"),
        ("decimal(38,2)", "decimal(38,10)", None),
        ("integer", "decimal(10,2)", "decimal(12,2)"),
        ("short", "decimal(10,2)", "decimal(10,2)"),
        ("long", "decimal(38,20)", None),
        ("string", "integer", None),
        ("date", "timestamp", None),
        ("timestamp", "timestamp_ntz", None),
        ("boolean", "integer", None),
        (array("integer"), array("long"), array("long")),
        (array("integer"), array("string"), None),
        (array("integer"), "integer", None),
    ],
)
def test_a_common_type_holds_every_value_of_both(one, other, common):
    """None where only text would."""
    for pair in ((one, other), (other, one)):
        found = common_type(*map(json.dumps, pair))
        assert (found and json.loads(found)) == common


TYPES = {
    "small": '"short"',
    "large": '"long"',
    "code": '"string"',
    "rate": '"double"',
    "tags": "{}",
}


def test_a_condition_lists_few_keys():
    assert one_of([(1,), (-2,), (1,)], ["small"], TYPES) == "`small` IN (1S, -2S)"
    assert one_of([(1, "it's"), (2, "${a}\\")], ["large", "code"], TYPES) == (
        r"`large` IN (1L, 2L) AND `code` IN ('it\'s', '\u0024{a}\\') "
        r"AND (`large`, `code`) IN ((1L, 'it\'s'), (2L, '\u0024{a}\\'))"
    )
    assert one_of([(n,) for n in range(LISTED)], ["large"], TYPES)


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ([], "large"),
        ([(1,), (None,)], "large"),
        ([(1.5,)], "rate"),
        ([(["a"],)], "tags"),
        ([(n,) for n in range(LISTED + 1)], "large"),
        ([(f"{n}".zfill(2_000),) for n in range(50)], "code"),
    ],
    ids=["no keys", "a null", "floating point", "an array", "too many", "too long"],
)
def test_a_condition_lists_no_other_keys(keys, name):
    assert one_of(keys, [name], TYPES) is None


FIRST_DAY: Final = (datetime.date(1583, 1, 1) - datetime.date(1970, 1, 1)).days
LAST_DAY: Final = (datetime.date(9999, 12, 31) - datetime.date(1970, 1, 1)).days
DAY_US: Final = 86_400_000_000


def test_rows_of_a_file_get_the_types_and_the_columns_of_its_table_now():
    """Rows of a commit do not: Spark casts those, or refuses to."""
    kinds = {"id": pa.int32(), "amount": pa.int64(), "codes": pa.list_(pa.int64())}
    columns = pa.schema(kinds.items())
    schema = FileSchema("t", columns, columns.set(1, pa.field("col-2", pa.int64())))
    older = pa.table({"id": pa.array([1], pa.int32()), "col-2": pa.array([2], pa.int32())})
    found = schema.file_rows(older)
    assert found is not None
    assert found.schema == schema.physical
    assert found.to_pylist() == [{"id": 1, "col-2": 2, "codes": None}]
    assert schema.physical_rows(older.rename_columns(["id", "amount"])) is None
    nested = older.append_column("codes", pa.array([[3]], pa.list_(pa.int32())))
    assert schema.file_rows(nested) is None, "Spark reads what is within others"


@pytest.mark.parametrize(
    ("day", "us", "bounded"),
    [
        (FIRST_DAY - 1, FIRST_DAY * DAY_US - 1, False),
        (FIRST_DAY, FIRST_DAY * DAY_US, True),
        (LAST_DAY, (LAST_DAY + 1) * DAY_US - 1, True),
        (LAST_DAY + 1, (LAST_DAY + 1) * DAY_US, False),
        (-719529, -719528 * DAY_US - 1, False),  # before the first year
        (100_000_000, 2**63 - 1, False),
    ],
)
def test_no_row_with_a_date_far_away_is_skipped(day, us, bounded):
    """Delta skips no file by a bound that its statistics do not have."""
    moments = pa.array([us], pa.int64())
    columns = {"day": pa.array([day], pa.int32()).cast(pa.date32())}
    columns |= {
        "at": moments.cast(pa.timestamp("us", "UTC")),
        "local": moments.cast(pa.timestamp("us")),
    }
    found = json.loads(statistics(pa.table(columns)))
    assert len(found["minValues"]) == len(found["maxValues"]) == (3 if bounded else 0)
