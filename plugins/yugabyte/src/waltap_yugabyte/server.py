"""Recognition of YugabyteDB by its version, the only evidence."""

import logging
import re
from collections.abc import Callable

from waltap.decode.decoder import ServerInfo
from waltap_postgres.connection import PostgresSession
from waltap_postgres.server_identity import ServerIdentity
from waltap_yugabyte.catalogue import YugabyteCatalogue
from waltap_yugabyte.errors import NotYugabyte

__all__ = ["YugabyteServer", "release"]

log = logging.getLogger(__name__)

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
    is recognised by `Slot.identity`.
    """

    def __init__(
        self,
        catalogue: YugabyteCatalogue,
        version_num: int,
        replication: Callable[[], PostgresSession],
    ) -> None:
        super().__init__(catalogue, version_num, replication)
        self.strict = catalogue.strict

    def identify(self) -> ServerInfo:
        version = self.version()
        if release(version) is None:
            problem = f"the server says it is {version!r}"
            if self.strict:
                raise NotYugabyte(problem)
            log.warning("%s: it is taken for YugabyteDB", problem)
        ((number,),) = self.catalogue.query(
            "SELECT oid::text FROM pg_database WHERE datname = current_database()"
        )
        return ServerInfo(
            version_num=self.version_num,
            version=version,
            system_id=f"yugabytedb-{number}",
            timeline=0,
            flavour="yugabytedb",
        )
