"""``format("waltap")`` on pyspark 4.1: a change log as a batch, and as a stream that goes on from its checkpoint."""

from tests.integration.test_spark_source import (
    log,
    test_a_stream_goes_on_from_its_checkpoint_in_batches_of_whole_flushes,
    test_every_type_has_its_column_and_its_value,
    test_several_tables_are_structs_of_their_columns,
)

__all__ = [
    "log",
    "test_a_stream_goes_on_from_its_checkpoint_in_batches_of_whole_flushes",
    "test_every_type_has_its_column_and_its_value",
    "test_several_tables_are_structs_of_their_columns",
]
