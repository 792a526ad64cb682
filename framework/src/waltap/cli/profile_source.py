"""A command's source argument: a profile's file, or a database URI."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import parse_qsl, unquote, urlsplit

import typer

from waltap.base.redaction import HIDDEN, looks_secret, redacted
from waltap.config.connect_worker import ASKING
from waltap.errors import PropertyProblem, usage_error

if TYPE_CHECKING:
    from waltap.config.layers import RawProfile
    from waltap.config.profile import Profile
    from waltap.pipeline.engine.build import PipelineStages
    from waltap.plugins.host import Host
    from waltap.ports.source.connector import Connector


@contextmanager
def connected(profile: "Profile", host: "Host") -> "Iterator[tuple[Connector, PipelineStages]]":
    """Connect to the profile's database, read-only. Raises: WaltapError."""
    from waltap.pipeline.engine.build import PipelineStages
    from waltap.ports.source.connector import MadeByRun

    stages = PipelineStages(profile, host)
    connector = stages.open_connector(MadeByRun())
    try:
        yield connector, stages
    finally:
        connector.close()


URI_FORM = "postgres://user@host:port/db?sslmode=…, or a profile's file"
KEY_VALUE = re.compile(r"^\s*\w+\s*=|\s\w+\s*=")
PARAMETERS = {
    "host": "database.hostname",
    "port": "database.port",
    "user": "database.user",
    "password": "database.password",
    "dbname": "database.dbname",
    **{
        f"ssl{name}": f"database.ssl{name}"
        for name in ("mode", "cert", "key", "rootcert", "password")
    },
}
"""Parameters of a URI's query that are properties of their own; others are libpq's."""

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

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def read(source: str) -> "RawProfile":
    """Return the profile in a file or database URI.

    Raises: ConfigurationError.
    """
    from waltap.config.layers import load, read_tables

    if "://" in source:
        table, origin = _from_uri(source)
        return read_tables({"source": table}, origin=origin)
    if KEY_VALUE.search(source) and not Path(source).exists():
        raise usage_error("DSN", "is given as key=value pairs", allowed=URI_FORM)
    return load(Path(source))


def at_rest(source: str, set_: list[str] | None) -> "tuple[Profile, Host]":
    """Return an idle pipeline's profile, and the plugins.

    Sink and format may be missing, with their plugins. Raises: ConfigurationError.
    """
    from waltap.config.resolve import resolve
    from waltap.plugins.host import Host

    host, raw = Host(), read(source)
    return resolve(raw, host, overrides=overrides(raw, set_), at_rest=True), host


def resolved(
    source: str, set_: list[str] | None, sink: str | None = None
) -> "tuple[Profile, Host, RawProfile]":
    """Return the profile, even without sink, for a reading command.

    Raises: ConfigurationError.
    """
    from waltap.config.resolve import resolve
    from waltap.plugins.host import Host

    host, raw = Host(), read(source)
    used = any_sink(raw, sink)
    return resolve(raw, host, sink=used, overrides=overrides(raw, set_)), host, raw


def any_sink(raw: "RawProfile", sink: str | None = None) -> str | None:
    """Return a sink argument for a command that writes nothing.

    A profile may lack a sink, and properties of a missing sink are not checked.
    """
    if gives_sink(raw, sink):
        return sink
    for name in ASKING:
        raw.settings.pop(name, None)
    raw.sink.clear()
    return "terminal"


def gives_sink(raw: "RawProfile", sink: str | None) -> bool:
    """Return whether the profile or the command line names a sink."""
    return sink is not None or "sink" in raw.types or bool(raw.branches)


def overrides(raw: "RawProfile", given: list[str] | None) -> dict[str, str]:
    """Return the properties of ``--set``.

    Mistakes in them count as problems of the profile.
    """
    values: dict[str, str] = {}
    for entry in given or []:
        name, equals, value = entry.partition("=")
        if not equals or not name.strip():
            shown = HIDDEN if looks_secret(name) else redacted(name)
            raw.problems.append(PropertyProblem("--set", "is not NAME=VALUE", value=shown))
        else:
            values[name.strip()] = value
    return values


def _from_uri(uri: str) -> tuple[dict[str, object], str]:
    """Return a database URI as a [source] table, and without its secrets.

    Raises: ConfigurationError without a part of the URI: it may contain the password.
    """
    try:
        parts = urlsplit(uri)
        port = parts.port
        asked = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        what = "cannot be read; characters such as / ? # @ : in a password are written %2F %3F …"
        raise usage_error("DSN", what, allowed=URI_FORM) from None
    table: dict[str, object] = {"type": parts.scheme}
    given = {
        "database.hostname": unquote(parts.hostname or ""),
        "database.port": port,
        "database.user": unquote(parts.username or ""),
        "database.password": unquote(parts.password or ""),
        "database.dbname": unquote(parts.path.lstrip("/")),
    }
    table.update({name: value for name, value in given.items() if value})
    for name, value in asked:
        if name in PARAMETERS:
            table[PARAMETERS[name]] = value
        else:
            table[f"driver.{name}"] = value
    user, host = table.get("database.user"), parts.netloc.rpartition("@")[2]
    origin = f"{parts.scheme}://{f'{user}@' if user else ''}{host}{parts.path}"
    return table, origin
