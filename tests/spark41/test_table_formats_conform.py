"""Iceberg, in a Hadoop catalogue below the output, and Delta Lake keep the kit's promises on pyspark 4.1."""

import pytest

import waltap_spark.plugin
from waltap_testing.suites.table_format import TableFormatRig, TableFormatSuite

SPECS = {spec.name: spec for spec in waltap_spark.plugin.register_table_formats()}


class TestIceberg(TableFormatSuite):
    @pytest.fixture
    def rig(self, iceberg) -> TableFormatRig:
        return TableFormatRig(SPECS["iceberg"], iceberg)


class TestDelta(TableFormatSuite):
    @pytest.fixture
    def rig(self, delta) -> TableFormatRig:
        return TableFormatRig(SPECS["delta"], delta)
