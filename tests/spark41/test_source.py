"""``format("waltap")`` on pyspark 4.1: a change log as a batch, and as a stream that goes on from its checkpoint."""

from tests.integration.test_spark_source import (
    log,
    test_every_type_has_its_column_and_its_value,
)

__all__ = [
    "log",
    "test_every_type_has_its_column_and_its_value",
]


def test_a_stream_goes_on_from_its_checkpoint(log):
    """In one batch, whatever there is: this Spark asks for the end alone."""
    log.people("a", "b")
    log.people("c")
    log.query(reader="night", maxRowsPerBatch=1)
    log.people("d")
    log.query(reader="night", maxRowsPerBatch=1)
    assert log.streamed() == ["0 abc", "1 d"]
    reader, (_first, second, _third) = log.log.readers.get("night"), log.log.manifests()
    assert second.log_position <= reader.log_position, "what the query is done with need not stay"
