"""``waltap sql``: compare a target with its source, and move its sequences."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from waltap.base.text import sql_name
from waltap.cli.profile_source import FileArgument, read
from waltap.cli.terminal import answers
from waltap.config.resolve import resolve
from waltap.errors import usage_error
from waltap.plugins.host import Host
from waltap.ports.sink.sink import SinkContext
from waltap_sinks.comparison.commands import verify
from waltap_sinks.sql.metadata import SinkMetadata
from waltap_sinks.sql.properties import SqlProperties
from waltap_sinks.sql.shape import TargetName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from psycopg import Connection

    from waltap_sinks.sql.metadata import KnownTable
    from waltap_sinks.sql.properties import SqlProperties


OWNED = """
    SELECT format('%%I.%%I', n.nspname, s.relname), quote_ident(a.attname)
    FROM pg_depend d JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
      JOIN pg_namespace n ON n.oid = s.relnamespace
      JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
    WHERE d.refobjid = to_regclass(%s) AND d.classid = 'pg_class'::regclass
      AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
"""

application = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Compare a target of the sink sql with its source; move its sequences.",
)


application.command()(verify)  # the same command, with the same options


@application.command()
def sequences(file: FileArgument) -> None:
    """Move the sequences of a PostgreSQL target after their columns' values.

    For the moment in which applications begin to write there; no sequence is moved back.
    """
    moved = _move_all(*_target(file))
    for sequence, last in moved:
        answers().print(f"{sequence}: {last}")
    if not moved:
        answers().print("every sequence is where its rows are")


def _target(file: str) -> "tuple[SqlProperties, str]":
    """Return the sink's properties and the pipeline's name.

    Raises: ConfigurationError.
    """
    profile = resolve(read(file), Host())
    properties = profile.sink.properties
    if not isinstance(properties, SqlProperties) or not properties.url.startswith("postgres"):
        raise usage_error(
            "sink.type", "is not the sink sql with a PostgreSQL target", allowed="sql"
        )
    return properties, profile.name


def _move_all(properties: "SqlProperties", pipeline: str) -> list[tuple[str, int]]:
    """Move the sequences of all tables of a pipeline. Raises: SinkError."""
    from waltap_sinks.sql.targets.postgresql import PostgresTarget

    target = PostgresTarget(properties, SinkContext(pipeline=pipeline, state_dir=Path()))
    table = TargetName.parsed(properties.position_table, schemas=True)
    metadata = SinkMetadata(target, table, pipeline)
    try:
        try:
            target.open()
            target.raw.autocommit = True
            target.reads_whole_tables()
            metadata.read()
        except Exception as error:
            if not target.speaks(error):
                raise
            raise target.failure(
                error, table=None, position="the start", positions=metadata.name
            ) from error
        return _move_sequences(target.raw, metadata.current_tables.values())
    finally:
        target.close()


def _move_sequences(
    connection: "Connection[Any]", tables: "Iterable[KnownTable]"
) -> list[tuple[str, int]]:
    """Move each sequence to the largest value of its column.

    Return the moved sequences with their new last values. No sequence moves back.
    """
    moved = []
    for table in tables:
        table_name = sql_name(*filter(None, table.name))
        for sequence, column in connection.execute(OWNED, [table_name]).fetchall():
            query = (
                f"SELECT setval('{sequence.replace(chr(39), chr(39) * 2)}', top) FROM"
                f" (SELECT max({column})::bigint AS top FROM {table_name}) rows, {sequence} held "
                "WHERE top > held.last_value OR (top = held.last_value AND NOT held.is_called)"
            )
            moved += [(sequence, int(last)) for (last,) in connection.execute(query.encode())]
    return moved
