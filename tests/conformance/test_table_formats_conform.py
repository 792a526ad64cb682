"""Every format of Spark's tables keeps the kit's promises."""

import pytest

import waltap_spark.plugin
from waltap_spark.state.modes import ModeRules
from waltap_testing.suites.table_format import TableFormatRig, TableFormatSuite

SPECS = {spec.name: spec for spec in waltap_spark.plugin.register_table_formats()}

VERSIONS = ModeRules(modes=(r".*\.pairs:scd1", "scd2"))
SOFT = ModeRules(deletes=(r".*\.pairs:hard", "soft"), modes=("scd1",))


class TestParquet(TableFormatSuite):
    @pytest.fixture
    def rig(self, spark) -> TableFormatRig:
        return TableFormatRig(SPECS["parquet"], spark)


class TestDelta(TableFormatSuite):
    @pytest.fixture
    def rig(self, delta) -> TableFormatRig:
        return TableFormatRig(SPECS["delta"], delta)


class TestParquetVersions(TableFormatSuite):
    @pytest.fixture
    def rig(self, spark) -> TableFormatRig:
        return TableFormatRig(SPECS["parquet"], spark, modes=VERSIONS)


class TestParquetSoftDeletes(TableFormatSuite):
    @pytest.fixture
    def rig(self, spark) -> TableFormatRig:
        return TableFormatRig(SPECS["parquet"], spark, modes=SOFT)


class TestDeltaVersions(TableFormatSuite):
    @pytest.fixture
    def rig(self, delta) -> TableFormatRig:
        return TableFormatRig(SPECS["delta"], delta, modes=VERSIONS)
