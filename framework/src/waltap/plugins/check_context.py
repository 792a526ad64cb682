"""Define the context of a plugin's check."""

from dataclasses import dataclass

from waltap.config.profile import Profile
from waltap.ports.offsets.offset import Offset
from waltap.ports.source.connector import Connector, SourceLacks
from waltap.ports.source.roles import QueryableSource


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckContext:
    """The state that a plugin's check may read before a start."""

    # Every property of the pipeline.
    profile: Profile
    # Connected. The check must change nothing.
    connector: Connector
    # The stored offset, None at a first start.
    offset: Offset | None

    def query(self, sql: str, parameters: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        """Return the rows of a read-only statement on the server.

        ``parameters`` replace its ``%s``. Raises: SourceError; SourceLacks where the source has no SQL.
        """
        if not isinstance(self.connector, QueryableSource):
            raise SourceLacks("this source knows no SQL")
        return self.connector.query(sql, parameters)
