"""What stands after a command: the file of a profile, or the URI of a database."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import parse_qsl, unquote, urlsplit

import typer

from waltap.errors import ConfigurationError, Problem

if TYPE_CHECKING:
    from waltap.config.layers import RawProfile

__all__ = [
    "FileArgument",
    "SetOption",
    "SinkOption",
    "SourceArgument",
    "any_sink",
    "overrides",
    "read",
]

FileArgument = Annotated[
    str,
    typer.Argument(metavar="FILE", help="Profile: waltap TOML, Debezium .properties or JSON."),
]
SourceArgument = Annotated[
    str,
    typer.Argument(metavar="FILE|DSN", help="Profile, or a database: postgres://user@host/db."),
]
SinkOption = Annotated[
    str | None,
    typer.Option("--sink", metavar="NAME[:VALUE]", help="Sink to use instead of the profile's."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Set a property; may be given again."),
]


def read(source: str) -> "RawProfile":
    """Return the profile in a file, or the one a database's URI stands for.

    Raises: ConfigurationError.
    """
    from waltap.config.layers import load, read_tables

    if "://" in source:
        return read_tables({"source": _from_uri(source)}, origin=_without_password(source))
    return load(Path(source))


def any_sink(raw: "RawProfile", sink: str | None = None) -> str | None:
    """Return the sink argument for a command that writes nowhere: a profile need not have one."""
    return "terminal" if sink is None and "sink" not in raw.types else sink


def overrides(given: list[str] | None) -> dict[str, str]:
    """Return the properties of ``--set``. Raises: ConfigurationError."""
    values: dict[str, str] = {}
    problems: list[Problem] = []
    for entry in given or []:
        name, equals, value = entry.partition("=")
        if not equals or not name.strip():
            problems.append(Problem("--set", "is not NAME=VALUE", value=name))
        values[name.strip()] = value
    if problems:
        raise ConfigurationError(problems, origin="the command line")
    return values


def _from_uri(uri: str) -> dict[str, object]:
    """Return the [source] table that a database URI stands for."""
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError as cause:
        problem = Problem("DSN", f"cannot be read: {cause}", allowed="postgres://user@host:port/db")
        raise ConfigurationError([problem], origin="the command line") from cause
    table: dict[str, object] = {"type": parts.scheme}
    given = {
        "database.hostname": unquote(parts.hostname or ""),
        "database.port": port,
        "database.user": unquote(parts.username or ""),
        "database.password": unquote(parts.password or ""),
        "database.dbname": unquote(parts.path.lstrip("/")),
    }
    table.update({name: value for name, value in given.items() if value})
    for name, value in parse_qsl(parts.query):
        if name == "host":
            table["database.hostname"] = value
        elif name.startswith("ssl"):
            table[f"database.{name}"] = value
        else:
            table[f"driver.{name}"] = value
    return table


def _without_password(uri: str) -> str:
    head, at, tail = uri.rpartition("@")
    if not at:
        return uri
    scheme, _, userinfo = head.partition("://")
    return f"{scheme}://{userinfo.partition(':')[0]}@{tail}"
