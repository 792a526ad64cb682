"""What tasks give to Spark, in the environment with pyspark 4.1."""

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructField, StructType, TimestampNTZType, TimestampType

from waltap_sinks.changelog import FileStore
from waltap_spark.compact.small_sets import arrow_types
from waltap_spark.schema.schema import arrow_schema


def test_batches_of_tasks_have_instants_in_utc_and_times_of_day_without_a_zone():
    fields = [StructField("at", TimestampType()), StructField("local", TimestampNTZType())]
    found = arrow_schema(StructType(fields))
    assert [str(field.type) for field in found] == ["timestamp[us, tz=UTC]", "timestamp[us]"]


def test_timestamps_of_few_rows_have_a_zone_where_the_source_has_one(tmp_path):
    """Of a small segment this process shows the types, of a large one Spark does: they are the same."""
    moments = pa.array([0], pa.timestamp("us"))
    rows = pa.table({"local": moments, "at": moments.cast(pa.timestamp("us", "UTC"))})
    pq.write_table(rows, tmp_path / "few.parquet")
    found = arrow_types(FileStore(str(tmp_path)).parquet_schema("few.parquet"))
    assert found == {"local": '"timestamp_ntz"', "at": '"timestamp"'}
