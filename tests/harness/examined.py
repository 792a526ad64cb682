"""A profile as the resolution finds it, with the origins of its properties."""

from collections.abc import Mapping
from typing import Any

from waltap.config.layers import RawProfile, read_debezium
from waltap.config.namespace import ValidationResult
from waltap.config.resolve import survey
from waltap.plugins.host import Host


def examine(raw: RawProfile, host: Host, **options: Any) -> ValidationResult:
    """Return the resolved profile and its findings. Raises: ConfigurationError with every problem."""
    found = survey(raw, host, **options)
    if found.profile is None:
        raise found.error()
    return found


POSTGRES = "io.debezium.connector.postgresql.PostgresConnector"


def connector_file(given: Mapping[str, str]) -> RawProfile:
    """Return the file of a connector for PostgreSQL that has these properties, too."""
    least = {"connector.class": POSTGRES, "topic.prefix": "t", "database.dbname": "d"}
    return read_debezium({**least, "plugin.name": "pgoutput", **given}, "c.properties")
