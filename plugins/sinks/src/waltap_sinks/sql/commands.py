"""``waltap sql``: compare a target with its source."""

from typing import TYPE_CHECKING, Annotated

import typer

from waltap.cli.profile_source import FileArgument

if TYPE_CHECKING:
    from waltap_sinks.sql.properties import SqlProperties

__all__ = ["application"]

application = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Compare a target of the sink sql with its source; move its sequences.",
)


@application.command()
def verify(
    file: FileArgument,
    dsn: Annotated[
        str, typer.Option("--dsn", help="The source: postgres://user@host/db or key=value pairs.")
    ],
    table: Annotated[
        list[str] | None,
        typer.Option("--table", metavar="SCHEMA.TABLE", help="Compare only this one; repeatable."),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            "--without",
            metavar="COLUMN",
            help="Leave out a column, or SCHEMA.TABLE.COLUMN; repeatable.",
        ),
    ] = None,
    patience: Annotated[
        float, typer.Option(help="Seconds for which rows that differ may be on their way.")
    ] = 30.0,
) -> None:
    """Compare every table of a PostgreSQL target with the source's, while both are written.

    Exit code 1 when rows differ, or when the target lacks a column that --without does not name.
    """
    import psycopg

    from waltap.cli.screen import answers
    from waltap.errors import ConnectionLost
    from waltap_sinks.comparison import comparison_table
    from waltap_sinks.sql.target_books import opened_books
    from waltap_sinks.sql.verify import compare, pairs

    properties, pipeline = _target(file)
    try:
        source = psycopg.connect(dsn, autocommit=True)
    except psycopg.OperationalError as cause:
        raise ConnectionLost(str(cause).strip()) from cause
    except (psycopg.ProgrammingError, UnicodeError) as cause:  # it quotes what may be a password
        text = "cannot be read: postgres://user@host/db or key=value pairs"
        raise typer.BadParameter(text, param_hint="--dsn") from cause
    with source, opened_books(properties, pipeline) as (target, books):
        found = pairs(source, target, books.known, tables=table or (), without=without or ())
        results = compare(source, target, found, patience_s=patience)
    answers().print(comparison_table(results, "the target"))
    if not results:
        answers().print("no table of this pipeline is in the target")
    if not results or not all(each.equal and not each.left_out for each in results):
        raise typer.Exit(1)


@application.command()
def sequences(file: FileArgument) -> None:
    """Move the sequences of a PostgreSQL target behind the largest values of their columns.

    For the moment in which applications begin to write there; no sequence is moved back.
    """
    from waltap.cli.screen import answers
    from waltap_sinks.sql.sequences import move_sequences
    from waltap_sinks.sql.target_books import opened_books

    properties, pipeline = _target(file)
    with opened_books(properties, pipeline) as (target, books):
        moved = move_sequences(target, books.known.values())
    for sequence, last in moved:
        answers().print(f"{sequence}: {last}")
    if not moved:
        answers().print("every sequence is where its rows are")


def _target(file: str) -> "tuple[SqlProperties, str]":
    """Return the sink's properties and the pipeline's name. Raises: ConfigurationError."""
    from waltap.cli.profile_source import read
    from waltap.config.resolve import resolve
    from waltap.errors import COMMAND_LINE, ConfigurationError, Problem
    from waltap.host import Host
    from waltap_sinks.sql.properties import SqlProperties

    profile = resolve(read(file), Host())
    properties = profile.sink.properties
    if not isinstance(properties, SqlProperties) or not properties.url.startswith("postgres"):
        problem = Problem(
            "sink.type", "is not the sink sql with a PostgreSQL target", allowed="sql"
        )
        raise ConfigurationError([problem], origin=COMMAND_LINE)
    return properties, profile.name
