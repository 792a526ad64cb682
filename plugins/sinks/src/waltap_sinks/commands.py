"""``waltap sql``: compare a target with its source, and move its sequences."""

from contextlib import closing

from waltap.cli.profile_source import FileArgument, read
from waltap.cli.terminal import answers, command_group
from waltap.config.resolve import resolve
from waltap.errors import usage_error
from waltap.plugins.host import Host
from waltap_sinks.comparison.commands import verify
from waltap_sinks.sql.properties import SqlProperties
from waltap_sinks.sql.verification import PostgresVerification, open_verification_source

application = command_group("Compare a target of the sink sql with its source; move its sequences.")


application.command()(verify)  # the same command, with the same options


@application.command()
def sequences(file: FileArgument) -> None:
    """Move the sequences of a PostgreSQL target after their columns' values.

    For the moment in which applications begin to write there; no sequence is moved back.
    """
    source = open_verification_source(*_target(file))
    assert isinstance(source, PostgresVerification)
    with closing(source):
        moved = source.move_sequences()
    for sequence, last in moved:
        answers().print(f"{sequence}: {last}")
    if not moved:
        answers().print("every sequence is where its rows are")


def _target(file: str) -> tuple[SqlProperties, str]:
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
