"""Which server this is, and what its timelines were."""

from collections.abc import Callable
from contextlib import closing

from waltap.decode.decoder import ServerInfo
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.connection import Session
from waltap_postgres.errors import PrivilegeMissing

__all__ = ["ServerIdentity"]


class ServerIdentity:
    """Asks a PostgreSQL server. ``replication`` opens a session for replication commands."""

    def __init__(
        self, catalogue: PostgresCatalogue, version_num: int, replication: Callable[[], Session]
    ) -> None:
        self.catalogue, self.version_num = catalogue, version_num
        self.replication = replication

    def identify(self) -> ServerInfo:
        """Return what tells this server from others; the same as long as its data is. Raises: SourceError.

        By SQL; where a role may not ask that, by a walsender: REPLICATION is enough there.
        """
        try:
            rows = self.catalogue.query(
                "SELECT system_identifier::text, timeline_id"
                " FROM pg_control_system(), pg_control_checkpoint()"
            )
            system_id, timeline = rows[0]
        except PrivilegeMissing:
            with closing(self.replication()) as session:
                system_id, timeline, *_ = session.execute("IDENTIFY_SYSTEM")[0]
        return ServerInfo(
            version_num=self.version_num,
            version=self.version(),
            system_id=str(system_id),
            timeline=int(timeline),
        )

    def version(self) -> str:
        """Return what the server says of its version."""
        ((version,),) = self.catalogue.query("SELECT version()")
        return str(version)

    def history(self, timeline: int) -> str:
        """Return the history file of a timeline. Raises: SourceError.

        Source: PostgreSQL manual, "Streaming Replication Protocol", TIMELINE_HISTORY.
        """
        with closing(self.replication()) as session:
            ((_name, content),) = session.execute(f"TIMELINE_HISTORY {timeline}")
        return content or ""
