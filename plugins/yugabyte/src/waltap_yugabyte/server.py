"""Recognition of YugabyteDB by its version, the only evidence."""

import logging
import re
from typing import ClassVar

from waltap.changes.decode.decoder import ServerInfo
from waltap_postgres.catalog.catalogue import (
    UNVERSIONED_RELATION_SQL,
    CatalogTable,
    PostgresCatalogue,
)
from waltap_postgres.dialect import ServerIdentity
from waltap_yugabyte.errors import NotYugabyte
from waltap_yugabyte.properties import YugabyteProperties

log = logging.getLogger(__name__)


# The catalogue of a server without WAL positions and transaction ids.
#
# It has no system columns either. Source: yugabyte-db, ``yb_scan.c`` ("System column with id … is
# not supported yet"); documentation of logical replication, limitations.

# The transaction id of snapshot rows, since the server has no ``txid_current``.
SNAPSHOT_TRANSACTION = 2


class YugabyteCatalogue(PostgresCatalogue):
    """Answer None or nothing where the server has no such fact.

    Queries about tables use no system column.
    """

    properties: YugabyteProperties
    relation_sql: ClassVar[str] = UNVERSIONED_RELATION_SQL
    shows_transactions = False

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

    def name_version(self, oid: int) -> str | None:
        return None

    def is_materialized_view(self, schema: str, table: str, xid: int, *, was_table: bool) -> bool:
        return bool(
            self.query(
                "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
                " WHERE c.relkind = 'm' AND n.nspname = %s AND c.relname = %s",
                (schema, table),
            )
        )


RELEASE = re.compile(r"-YB-(\d+(?:\.\d+)*)-b(\d+)")


def release(version: str) -> str | None:
    """Return the release in a server's ``version()``, as "2025.2.4.0".

    None means another server.
    """
    found = RELEASE.search(version)
    return found[1] if found else None


class YugabyteServer(ServerIdentity):
    """Identify a cluster by its database.

    ``IDENTIFY_SYSTEM`` has no useful answer, and there is no timeline. A new slot of the same name
    is recognised by `YugabyteSlot.identity`.
    """

    catalogue: YugabyteCatalogue

    def identify(self) -> ServerInfo:
        version = self.version()
        if release(version) is None:
            problem = f"the server says it is {version!r}"
            if self.catalogue.properties.server_check == "refuse":
                raise NotYugabyte(problem)
            log.warning("%s: it is taken for YugabyteDB", problem)
        ((number,),) = self.catalogue.query(
            "SELECT oid::text FROM pg_database WHERE datname = current_database()"
        )
        return ServerInfo(
            version_num=self.catalogue.version_num,
            version=version,
            system_id=f"yugabytedb-{number}",
            timeline=0,
        )
