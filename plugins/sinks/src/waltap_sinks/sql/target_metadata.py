"""The books of a pipeline, for commands that read a target and write nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waltap.sink.sink import SinkContext
from waltap_sinks.sql.metadata import SinkMetadata
from waltap_sinks.sql.postgresql import PostgresTarget
from waltap_sinks.sql.properties import SqlProperties
from waltap_sinks.sql.shape import TargetName

if TYPE_CHECKING:
    from psycopg import Connection

__all__ = ["opened_books"]


@contextmanager
def opened_books(
    properties: SqlProperties, pipeline: str
) -> "Iterator[tuple[Connection[Any], SinkMetadata]]":
    """Connect to the target; give the connection, in autocommit, and the books. Raises: SinkError."""
    context = SinkContext(pipeline=pipeline, state_dir=Path())
    target = PostgresTarget(properties, context)
    books = SinkMetadata(
        target, TargetName.parsed(properties.position_table, schemas=True), pipeline
    )
    try:
        try:
            target.open()
            target.raw.autocommit = True
            target.reads_whole_tables()
            books.read()
        except Exception as error:
            if not target.speaks(error):
                raise
            raise target.failure(
                error, table=None, position="the start", positions=books.name
            ) from error
        yield target.raw, books
    finally:
        target.close()
