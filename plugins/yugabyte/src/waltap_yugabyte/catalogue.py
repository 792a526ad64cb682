"""The catalogue of a server without WAL positions and transaction ids.

It has no system columns either. Source: yugabyte-db, ``yb_scan.c`` ("System column with id … is
not supported yet"); documentation of logical replication, limitations.
"""

from typing import ClassVar

from waltap_postgres.catalog.catalogue import (
    UNVERSIONED_RELATION_SQL,
    CatalogTable,
    PostgresCatalogue,
)
from waltap_yugabyte.properties import YugabyteProperties

__all__ = ["YugabyteCatalogue"]

# The transaction id of snapshot rows, since the server has no ``txid_current``.
SNAPSHOT_TRANSACTION = 2


class YugabyteCatalogue(PostgresCatalogue):
    """Answer None or nothing where the server has no such fact.

    Queries about tables use no system column.
    """

    relation_sql: ClassVar[str] = UNVERSIONED_RELATION_SQL
    tells_transactions = False

    @property
    def strict(self) -> bool:
        """Return whether a server that hides its name is refused."""
        properties = self.properties
        return not isinstance(properties, YugabyteProperties) or properties.server_check == "refuse"

    def wal_end(self) -> int | None:
        return None

    def standby(self) -> bool:
        return False

    def transaction_id(self) -> int | None:
        return SNAPSHOT_TRANSACTION

    def snapshot(self) -> str | None:
        return None

    def visible_until(self) -> tuple[int, bool] | None:
        return None

    def named_since(self, xid: int) -> list[CatalogTable]:
        return []

    def is_materialized_view(self, schema: str, table: str, xid: int, *, was_table: bool) -> bool:
        return bool(
            self.query(
                "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
                " WHERE c.relkind = 'm' AND n.nspname = %s AND c.relname = %s",
                (schema, table),
            )
        )
