"""Targets of the sink sql: kinds of databases."""

from importlib import import_module
from typing import Final

from waltap.errors import ConfigurationError
from waltap.ports.sink.sink import SinkContext
from waltap_sinks.sql.errors import SqlDriverMissing
from waltap_sinks.sql.properties import SqlProperties
from waltap_sinks.sql.targets.target import SqlTarget

__all__ = ["target_of"]

# The scheme of an address, with module and class.
KINDS: Final = {
    "postgresql": ("postgresql", "PostgresTarget"),
    "postgres": ("postgresql", "PostgresTarget"),
    "sqlite": ("sqlite", "SqliteTarget"),
    "duckdb": ("duck", "DuckTarget"),
    "mariadb": ("mysql", "MysqlTarget"),
    "mysql": ("mysql", "MysqlTarget"),
}


def _require_address(url: str, kind: str) -> None:
    """Check the address without a connection.

    Raises: ConfigurationError, which does not quote it: it may have a password.
    """
    import sqlalchemy

    try:
        address = sqlalchemy.make_url(url)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        raise ConfigurationError.of(
            "sink.url", "is no address as KIND://USER:PASSWORD@HOST:PORT/DATABASE"
        ) from None
    if kind == "duckdb" and address.query:
        raise ConfigurationError.of("sink.url", "has parameters, and DuckDB takes none")
    if kind in {"sqlite", "duckdb"} and address.database in {None, "", ":memory:"}:
        raise ConfigurationError.of(
            "sink.url", "names no file, and a target in memory keeps neither rows nor position"
        )


def target_of(properties: SqlProperties, context: SinkContext) -> SqlTarget:
    """Return the target for ``sink.url``.

    Raises: ConfigurationError, SqlDriverMissing.
    """
    scheme = properties.url.partition("://")[0]
    kind = scheme.partition("+")[0].lower()
    if kind not in KINDS or "://" not in properties.url:
        known = ", ".join(f"{name}://" for name in KINDS)
        raise ConfigurationError.of("sink.url", "names no kind of target", allowed=known)
    module, name = KINDS[kind]
    try:
        _require_address(properties.url, kind)
        found = getattr(import_module(f"waltap_sinks.sql.targets.{module}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("waltap"):
            raise
        raise SqlDriverMissing(
            f"the sink sql needs the Python package {error.name} for {kind}://",
            package="'waltap[sql]'",
        ) from error
    made: SqlTarget = found(properties, context)
    return made
