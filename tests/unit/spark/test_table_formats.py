"""Formats of tables by name: what a session needs for them, what is missing, what they can do."""

import json

import pytest

from waltap.errors import ConfigurationError
from waltap.host import Host
from waltap.specs import TableFormatSpec
from waltap_spark.errors import FormatNotReady, FormatUnknown, FormatUnsupported
from waltap_spark.expression import namespace_of
from waltap_spark.formats import TableFormatContext
from waltap_spark.formats.choice import FormatChoice
from waltap_spark.formats.delta import DeltaFormat
from waltap_spark.formats.iceberg import IcebergFormat, each_step_once
from waltap_spark.formats.notes import CommitNote
from waltap_spark.formats.parquet import ParquetFormat
from waltap_spark.formats.stepwise import TableCommit
from waltap_spark.options import ApplyOptions
from waltap_spark.output import SparkOutput, TableState
from waltap_spark.properties import DeltaTableProperties, IcebergTableProperties

PACKAGES = {"spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0"}


def test_formats_come_from_plugins_and_an_unknown_one_is_refused_with_the_known() -> None:
    assert FormatChoice().factory is ParquetFormat
    assert {"parquet", "delta", "iceberg"} <= set(Host().table_formats)
    with pytest.raises(FormatUnknown, match=r"no table format called hudi.*delta, .*parquet"):
        _ = FormatChoice("hudi").factory


def test_a_property_that_the_format_has_not_is_refused_by_its_whole_name() -> None:
    with pytest.raises(ConfigurationError, match=r"format\.catalogue"):
        FormatChoice("delta", {"format.catalogue": "x"}).settings("4.2.1", PACKAGES)


def test_a_session_gets_what_delta_needs_beside_its_own_settings() -> None:
    found = FormatChoice("delta").settings(
        "4.2.1", {**PACKAGES, "spark.sql.extensions": "mine.Extension"}
    )
    assert found["spark.sql.extensions"] == (
        "mine.Extension,io.delta.sql.DeltaSparkSessionExtension"
    )
    assert found["spark.sql.catalog.spark_catalog"].endswith("DeltaCatalog")
    mine = {**PACKAGES, "spark.sql.catalog.spark_catalog": "io.unitycatalog.spark.UCSingleCatalog"}
    assert FormatChoice("delta").settings("4.1.4", mine)["spark.sql.catalog.spark_catalog"] == (
        "io.unitycatalog.spark.UCSingleCatalog"
    )


def test_missing_jars_are_named_with_what_brings_them() -> None:
    with pytest.raises(FormatNotReady, match=r"delta-spark_4\.2_2\.13:4\.4\.0") as told:
        FormatChoice("delta").settings("4.2.1", {"spark.jars": "/opt/other.jar"})
    assert "spark.jars.packages" in str(told.value)
    with pytest.raises(FormatNotReady, match=r"delta-spark_4\.1_2\.13:4\.4\.0"):
        FormatChoice("delta").settings("4.1.4", {})


@pytest.mark.parametrize("pyspark", ["4.3.0", "4.0.5", "3.5.9"])
def test_a_pyspark_without_a_release_of_delta_is_refused_with_the_table(pyspark: str) -> None:
    with pytest.raises(FormatUnsupported, match=r"Delta on 4\.1 and 4\.2"):
        FormatChoice("delta").settings(pyspark, PACKAGES)


def delta(folder: str = "/lake", catalog: str = "") -> DeltaFormat:
    context = TableFormatContext(output=SparkOutput(folder), options=ApplyOptions(), identity=str)
    return DeltaFormat(DeltaTableProperties(catalog=catalog), context)


def test_a_table_is_known_by_its_path_or_by_its_name_in_the_catalogue() -> None:
    table = TableState(schema="we.ird", table="a`b")
    assert delta().identifier(table, "changes") == (
        "delta.`file:///lake/tables/we%2Eird/a%60b/delta/changes`"
    )
    assert delta(catalog="unity.lake").identifier(table, "changes") == (
        "`unity`.`lake`.`we.ird`.`a``b_changes`"
    )
    assert delta(catalog="c").identifier(table, "current") == "`c`.`we.ird`.`a``b`"


@pytest.mark.parametrize(
    ("old", "new", "widens"),
    [
        ('"short"', '"long"', True),
        ('"long"', '"integer"', False),
        ('"float"', '"double"', True),
        ('"integer"', '"double"', True),
        ('"long"', '"double"', False),
        ('"integer"', '"decimal(12,2)"', True),
        ('"long"', '"decimal(21,2)"', False),
        ('"decimal(10,2)"', '"decimal(12,4)"', True),
        ('"decimal(10,2)"', '"decimal(10,4)"', False),
        ('"integer"', '"string"', False),
        ('{"type":"array","elementType":"integer","containsNull":true}', '"string"', False),
    ],
)
def test_columns_that_can_grow_without_rewriting_rows(old: str, new: str, widens: bool) -> None:
    assert delta().widens(old, new) is widens


RUNTIME = {"spark.jars.packages": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"}


@pytest.mark.parametrize("pyspark", ["4.3.0", "4.2.1", "4.0.5"])
def test_a_pyspark_without_a_release_of_iceberg_is_refused_with_the_table(pyspark: str) -> None:
    with pytest.raises(FormatUnsupported, match=r"Iceberg on 4\.1.*pyspark==4\.1\.\*"):
        FormatChoice("iceberg").settings(pyspark, RUNTIME)


def test_a_session_gets_what_iceberg_needs_beside_delta_and_its_catalogues() -> None:
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
    with pytest.raises(FormatNotReady, match=r"iceberg-spark-runtime-4\.1_2\.13"):
        FormatChoice("iceberg").settings("4.1.4", {})


def iceberg(catalog: str = "") -> IcebergFormat:
    context = TableFormatContext(output=SparkOutput("/lake"), options=ApplyOptions(), identity=str)
    return IcebergFormat(IcebergTableProperties(catalog=catalog), context)


def test_an_iceberg_table_is_a_folder_of_our_catalogue_or_a_name_in_another() -> None:
    table = TableState(schema="we.ird", table="a`b")
    own = "`waltap_iceberg`.`we%2Eird`.`a%60b`.`changes`"
    assert iceberg().identifier(table, "changes") == own
    assert (
        iceberg("lake.raw").identifier(table, "changes") == "`lake`.`raw`.`we.ird`.`a``b_changes`"
    )


def test_the_namespace_of_a_name_is_found_with_dots_and_back_ticks_in_it() -> None:
    table = TableState(schema="we.ird", table="a`.`b")
    assert namespace_of(iceberg("lake.raw").identifier(table, "current")) == "`lake`.`raw`.`we.ird`"


def test_types_that_iceberg_has_not_are_stored_as_wider_ones_also_within_others() -> None:
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
    ("old", "new", "widens"),
    [
        ('"integer"', '"long"', True),
        ('"float"', '"double"', True),
        ('"integer"', '"double"', False),
        ('"decimal(10,2)"', '"decimal(12,2)"', True),
        ('"decimal(10,2)"', '"decimal(12,4)"', False),
        ('"date"', '"timestamp"', False),
    ],
)
def test_columns_that_iceberg_promotes(old: str, new: str, widens: bool) -> None:
    assert iceberg().widens(old, new) is widens


def test_a_step_that_was_taken_twice_is_somebody_elses() -> None:
    note = CommitNote(waltap="me", step=3)
    commits = [
        TableCommit(7, "append", note),
        TableCommit(8, "append", note),
        TableCommit(9, "append", None),
    ]
    once = each_step_once(commits)
    assert [each.note for each in once] == [note, None, None]
    assert once[1].operation == "step 3 once more"


def test_a_spec_is_checked_as_every_spec_is() -> None:
    assert all(isinstance(each, TableFormatSpec) for each in Host().table_formats.values())
