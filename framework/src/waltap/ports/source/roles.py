"""Define optional roles of a source, each a protocol of the methods that it needs.

A connector has a role if it has its methods: it inherits nothing and declares nothing. The engine asks
with `isinstance`, and does without what the source does not offer.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from waltap.changes.transactions.position import Position, Positions
from waltap.ports.offsets.offset import Offset
from waltap.ports.source.connector import ChangeStream, Connector, SetupPlan, SourceLacks

if TYPE_CHECKING:
    from waltap.changes.decode.decoder import Decoder


@runtime_checkable
class PlanningSource(Protocol):
    """A source that reports the setup of a start before the start."""

    def plan(self, offset: Offset | None) -> SetupPlan:
        """Return the setup that `prepare` would do, and the captured tables.

        The method changes nothing. Raises: SourceError, OffsetError, SnapshotError where `prepare` would.
        """


@runtime_checkable
class TakeoverSource(Protocol):
    """A source whose slots another engine reads, too."""

    def offset_at(self, position: Position) -> Offset:
        """Return the offset of a pipeline that resumes from ``position``.

        Another engine has read the slot up to that position. The offset is bound to the present server.
        Raises: SourceError.
        """


@runtime_checkable
class QueryableSource(Protocol):
    """A source with SQL."""

    def query(self, sql: str, parameters: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        """Return the rows of a read-only statement, for the checks of plugins.

        ``parameters`` replace its ``%s``. Raises: SourceError.
        """


@runtime_checkable
class DecodingSource(Protocol):
    """A source whose decoder can be inspected."""

    def decoder(self) -> "Decoder":
        """Return a decoder as a stream would have it. Raises: SourceError."""


@runtime_checkable
class ColumnListingSource(Protocol):
    """A source that lists its columns; the patterns of a profile are checked against them."""

    def column_names(self) -> Sequence[tuple[str, str, str | None, str | None]]:
        """Return (schema, table, column, type) of every existing column.

        A table without columns appears once, with None. Raises: SourceError.
        """


@runtime_checkable
class HeartbeatSource(Protocol):
    """A source on which a heartbeat can act."""

    def heartbeat(self) -> None:
        """Run the profile's heartbeat action on the server."""


@runtime_checkable
class WalSource(Protocol):
    """A source whose log has an end, and whose slots may retain row versions."""

    def wal_end(self) -> int | None:
        """Return the end of the source's log, None if this server does not tell it.

        Raises: SourceError.
        """

    def xmin_reader(self) -> Callable[[], int | None] | None:
        """Return the function that returns ``source.xmin`` of the changes just received.

        None: changes have none. The engine calls the function for each batch; it queries the server only
        as often as the profile requests, and raises SourceError.
        """


@runtime_checkable
class PartitionedSource(Protocol):
    """A source of several streams, each with a position of its own."""

    # How long a merge of the partitions in commit order waits for a silent one. The commits must
    # be comparable. None: no merge.
    merges_within_s: float | None

    def streams(self, positions: Positions) -> Mapping[str, ChangeStream]:
        """Start streaming every partition; return the streams by partition.

        If one of them fails, none stays open. Raises: as `Connector.stream`.
        """


def planned(connector: Connector, offset: Offset | None) -> SetupPlan:
    """Return the plan of a start. Raises: as `PlanningSource.plan`; SourceLacks."""
    if not isinstance(connector, PlanningSource):
        raise SourceLacks("this source reports nothing about its setup before the start")
    return connector.plan(offset)
