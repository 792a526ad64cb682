"""Which kind of target an address leads to."""

from importlib import import_module
from typing import Final

from waltap.errors import ConfigurationError, PropertyProblem
from waltap.sink.sink import SinkContext
from waltap_sinks.sql.errors import SqlDriverMissing
from waltap_sinks.sql.properties import SqlProperties
from waltap_sinks.sql.target import SqlTarget

__all__ = ["target_of"]

KINDS: Final = {
    "postgresql": ("postgresql", "PostgresTarget"),
    "postgres": ("postgresql", "PostgresTarget"),
    "sqlite": ("sqlite", "SqliteTarget"),
    "duckdb": ("duck", "DuckTarget"),
    "mariadb": ("mysql", "MysqlTarget"),
    "mysql": ("mysql", "MysqlTarget"),
}
"""What an address begins with → module and class."""


def target_of(properties: SqlProperties, context: SinkContext) -> SqlTarget:
    """Return the target that ``sink.url`` names. Raises: ConfigurationError, SqlDriverMissing."""
    scheme = properties.url.partition("://")[0]
    kind = scheme.partition("+")[0].lower()
    if kind not in KINDS or "://" not in properties.url:
        known = ", ".join(f"{name}://" for name in KINDS)
        raise ConfigurationError(
            [PropertyProblem("sink.url", "names no kind of target", allowed=known)]
        )
    module, name = KINDS[kind]
    try:
        found = getattr(import_module(f"waltap_sinks.sql.{module}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("waltap"):
            raise
        raise SqlDriverMissing(
            f"the sink sql needs the Python package {error.name} for {kind}://",
            package="'waltap[sql]'",
        ) from error
    made: SqlTarget = found(properties, context)
    return made
