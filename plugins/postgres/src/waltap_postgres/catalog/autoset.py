"""Replica identities that a start sets on captured tables.

Source: the property ``replica.identity.autoset.values``.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import psycopg

from waltap.capture.java_regex import java_pattern
from waltap_postgres.catalog.catalogue import CatalogTable
from waltap_postgres.connection import driver_error
from waltap_postgres.identity import has_word
from waltap_postgres.properties import PostgresProperties
from waltap_postgres.replication.publication import identifier

__all__ = ["identity_statements", "set_identities"]


def identity_statements(
    properties: PostgresProperties, captured: Iterable[CatalogTable]
) -> Iterator[str]:
    """Yield ALTER TABLE for the tables that differ from the property."""
    for entry in properties.replica_identity_autoset_values:
        pattern, _, value = entry.rpartition(":")
        word, _, index = value.strip().partition(" ")
        for table in captured:
            relation = table.relation
            if not java_pattern(pattern).fullmatch(relation.name):
                continue
            # The relation does not name its index, so an index is always set again.
            if has_word(relation, word) and not index:
                continue
            clause = f"USING INDEX {identifier(index.strip())}" if index else word.upper()
            name = identifier(relation.schema, relation.table)
            yield f"ALTER TABLE {name} REPLICA IDENTITY {clause}"


def set_identities(
    connection: "psycopg.Connection[tuple[Any, ...]]",
    properties: PostgresProperties,
    captured: Iterable[CatalogTable],
) -> None:
    """Run `identity_statements`.

    Raises: SourceError.
    """
    for statement in identity_statements(properties, captured):
        try:
            connection.execute(statement.encode())
        except psycopg.Error as error:
            raise driver_error(error, properties) from error
