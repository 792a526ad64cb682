"""``waltap sql``: compare a target with its source."""

from typing import TYPE_CHECKING

import typer

from waltap.cli.profile_source import FileArgument
from waltap_sinks.comparison.commands import verify

if TYPE_CHECKING:
    from waltap_sinks.sql.properties import SqlProperties

__all__ = ["application"]

application = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Compare a target of the sink sql with its source; move its sequences.",
)


application.command()(verify)  # the same command, with the same options


@application.command()
def sequences(file: FileArgument) -> None:
    """Move the sequences of a PostgreSQL target behind the largest values of their columns.

    For the moment in which applications begin to write there; no sequence is moved back.
    """
    from waltap.cli.live_console import answers
    from waltap_sinks.sql.sequences import move_sequences
    from waltap_sinks.sql.target_metadata import opened_books

    properties, pipeline = _target(file)
    with opened_books(properties, pipeline) as (target, books):
        moved = move_sequences(target, books.kept.values())
    for sequence, last in moved:
        answers().print(f"{sequence}: {last}")
    if not moved:
        answers().print("every sequence is where its rows are")


def _target(file: str) -> "tuple[SqlProperties, str]":
    """Return the sink's properties and the pipeline's name. Raises: ConfigurationError."""
    from waltap.cli.profile_source import read
    from waltap.config.resolve import resolve
    from waltap.errors import COMMAND_LINE, ConfigurationError, PropertyProblem
    from waltap.host import Host
    from waltap_sinks.sql.properties import SqlProperties

    profile = resolve(read(file), Host())
    properties = profile.sink.properties
    if not isinstance(properties, SqlProperties) or not properties.url.startswith("postgres"):
        problem = PropertyProblem(
            "sink.type", "is not the sink sql with a PostgreSQL target", allowed="sql"
        )
        raise ConfigurationError([problem], origin=COMMAND_LINE)
    return properties, profile.name
