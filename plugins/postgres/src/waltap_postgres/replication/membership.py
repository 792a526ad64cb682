"""Add tables to a publication, or remove them, while a pipeline may run."""

from collections.abc import Iterable

import psycopg

from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.connection import driver_error
from waltap_postgres.errors import PublicationNotPermitted
from waltap_postgres.properties import PostgresProperties
from waltap_postgres.replication.publication import identifier

__all__ = ["alter_membership", "named_in"]


def named_in(catalogue: PostgresCatalogue, name: str) -> set[tuple[str, str]]:
    """Return the tables that the publication names, partitioned ones too."""
    return set(
        catalogue.query(
            "SELECT n.nspname::text, c.relname::text FROM pg_publication p"
            " JOIN pg_publication_rel r ON r.prpubid = p.oid JOIN pg_class c ON c.oid = r.prrelid"
            " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE p.pubname = %s",
            (name,),
        )
    )


def alter_membership(
    connection: "psycopg.Connection[tuple[object, ...]]",
    properties: PostgresProperties,
    name: str,
    places: Iterable[tuple[str, str]],
    *,
    wanted: bool,
) -> None:
    """Add tables to a publication, or remove them.

    Raises: SourceError.
    """
    tables = ", ".join(identifier(*place) for place in sorted(places))
    alter = f"ALTER PUBLICATION {identifier(name)} {'ADD' if wanted else 'DROP'} TABLE {tables}"
    timeout = f"SET LOCAL lock_timeout = {properties.snapshot_lock_timeout_ms}"
    # Lock the table against writers before adding it. Rows that an open transaction has already
    # written would not be streamed, and a snapshot that reads the table now would not see them.
    lock = [timeout, f"LOCK TABLE {tables} IN SHARE MODE"] if wanted else []
    try:
        with connection.transaction():
            for statement in (*lock, alter):
                connection.execute(statement.encode())
    except psycopg.errors.InsufficientPrivilege as error:
        raise PublicationNotPermitted(
            f"role {properties.user!r} may not publish: {error.diag.message_primary}",
            sql=alter,
            database=identifier(properties.dbname),
            user=identifier(properties.user),
        ) from error
    except psycopg.Error as error:
        raise driver_error(error, properties) from error
