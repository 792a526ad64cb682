"""Formats of tables by name: what a session needs for them, what is missing, what they can do."""

import pytest

from waltap.errors import ConfigurationError
from waltap.host import Host
from waltap.specs import TableFormatSpec
from waltap_spark.errors import FormatNotReady, FormatUnknown, FormatUnsupported
from waltap_spark.formats import FormatContext
from waltap_spark.formats.choice import FormatChoice
from waltap_spark.formats.delta import DeltaFormat
from waltap_spark.formats.parquet import ParquetFormat
from waltap_spark.options import ApplyOptions
from waltap_spark.output import Output, TableState
from waltap_spark.properties import DeltaProperties

PACKAGES = {"spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0"}


def test_formats_come_from_plugins_and_an_unknown_one_is_refused_with_the_known() -> None:
    assert FormatChoice().factory is ParquetFormat
    assert {"parquet", "delta"} <= set(Host().table_formats)
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
    context = FormatContext(output=Output(folder), options=ApplyOptions(), identity=str)
    return DeltaFormat(DeltaProperties(catalog=catalog), context)


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


def test_a_spec_is_checked_as_every_spec_is() -> None:
    assert all(isinstance(each, TableFormatSpec) for each in Host().table_formats.values())
