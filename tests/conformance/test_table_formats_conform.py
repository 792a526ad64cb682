"""Every format of Spark's tables keeps the kit's promises."""

from typing import Any

import pytest

import waltap_spark.plugin
from waltap_testing.table_format_suite import TableFormatRig, TableFormatSuite

SPECS = {spec.name: spec for spec in waltap_spark.plugin.register_table_formats()}


class TestParquet(TableFormatSuite):
    @pytest.fixture
    def rig(self, spark: Any) -> TableFormatRig:
        return TableFormatRig(SPECS["parquet"], spark)


class TestDelta(TableFormatSuite):
    @pytest.fixture
    def rig(self, delta: Any) -> TableFormatRig:
        return TableFormatRig(SPECS["delta"], delta)
