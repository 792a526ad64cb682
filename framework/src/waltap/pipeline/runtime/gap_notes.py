"""Record gaps of a run, and close them after a repair.

A gap is a range of WAL that the source can no longer send.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from waltap.changes.decode.decoder import ServerInfo
from waltap.changes.transactions.position import Position, lsn_text
from waltap.errors import WaltapError
from waltap.ports.offsets.gaps import CaptureGap, GapCertificates, GapEnd, RereadTable, moment
from waltap.ports.offsets.offset import Offset, PartitionOffset
from waltap.ports.sink.stored_position import DestinationBehind
from waltap.ports.source.connector import Connector
from waltap.ports.source.roles import WalSource, tables_of
from waltap.services.monitor.counts import SnapshotTableProgress

log = logging.getLogger(__name__)

SNAPSHOT_REMARK = (
    "A new snapshot brought every row that there was then. Rows that were deleted within the gap stay in "
    "a sink that does not replace a table when a snapshot opens; the single changes are lost."
)
BACK_REMARK = "The destination has again what it had: it was brought back, and nothing is missing."


class GapNotes:
    """Keep the gap certificates of one pipeline."""

    def __init__(self, state_dir: Path, now_ms: Callable[[], int]) -> None:
        self._gaps, self._now_ms = GapCertificates(state_dir), now_ms
        self._pipeline, self.open = state_dir.name, 0

    def count(self) -> None:
        """Count the open gaps; an unreadable certificate is logged."""
        with self._logged():
            self.open = len(self._gaps.open())

    @contextmanager
    def _logged(self) -> Iterator[None]:
        """Log certificates' failures; the run's end stays the same."""
        try:
            yield
        except WaltapError as error:
            log.warning("%s", error, extra={"pipeline": self._pipeline})

    def lost(
        self,
        error: WaltapError,
        offset: Offset,
        *,
        end_lsn: int,
        server: ServerInfo | PartitionOffset,
        tables: Sequence[str] | None,
    ) -> str:
        """Store a certificate for the changes after ``offset``, up to ``end_lsn``.

        ``error`` is the reason; ``tables`` None means that they are unknown. Return the certificate's
        path. A failure to store it is logged and never changes how the run ends.
        """
        had, now = "", moment(self._now_ms())
        if isinstance(error, DestinationBehind):
            had = _text(offset.sink_positions)
            offset = _ended(offset, error)
        part = offset.first
        begin = GapEnd(
            lsn=lsn_text(part.position.end_lsn),
            timeline=part.timeline,
            system_id=part.system_id,
            time=moment(part.as_of_ms or None),
        )
        end = GapEnd(
            lsn=lsn_text(end_lsn), timeline=server.timeline, system_id=server.system_id, time=now
        )
        # For a file name, sorted by time.
        compact = str.maketrans(".", "-", ":-")
        gap = CaptureGap(
            identifier=now.partition("+")[0].translate(compact),
            pipeline=self._pipeline,
            database=part.database,
            slot=part.slot,
            code=error.code,
            why=error.problem,
            begin=begin,
            end=end,
            found=now,
            tables=tuple(tables or ()),
            had=had,
        )
        try:
            noted = self._gaps.note(gap, every_table=tables is None)
        except WaltapError as failure:
            log.warning("%s", failure, extra={"pipeline": self._pipeline})
            return "the log"
        self.count()
        path = self._gaps.folder / f"gap-{noted.identifier}.txt"
        if noted.identifier == gap.identifier:
            log.warning(
                "changes after %s are lost, the server is at %s: %s describes the gap",
                begin.lsn,
                end.lsn,
                path,
                extra={"pipeline": self._pipeline, "error_code": error.code},
            )
        return str(path)

    def missed(
        self,
        error: WaltapError,
        offset: Offset | None,
        connector: Connector,
        tables: Sequence[str] = (),
    ) -> None:
        """Store a certificate if ``error`` means that changes are lost.

        Without ``tables`` it names all captured ones. Before the end of a snapshot the destination can
        lack nothing, so there is no certificate.
        """
        if offset is None or not error.loses:
            return
        if isinstance(error, DestinationBehind) and offset.snapshot is not None:
            return
        end_lsn, named = 0, tables or None
        with suppress(WaltapError):
            named = tables or sorted(tables_of(connector).captured_tables().values())
            if isinstance(connector, WalSource):
                end_lsn = connector.wal_end() or 0
        self.lost(error, offset, end_lsn=end_lsn, server=connector.server, tables=named)

    def snapshot_taken(
        self, tables: Iterable[SnapshotTableProgress], left_out: Collection[str]
    ) -> None:
        """Close the open gaps: a snapshot read every table again.

        It ``left_out`` captured tables, whose gaps stay open.
        """
        reread = {table.table: RereadTable(rows=table.rows) for table in tables}

        def closes(gap: CaptureGap) -> bool:
            return not set(left_out).intersection(gap.tables or left_out)

        self.close(reread, by="snapshot", remark=SNAPSHOT_REMARK, closes=closes)

    def given_up(self) -> None:
        """Record that delivery continues to a destination that lacks data.

        To bring the destination back later closes no gap.
        """
        with self._logged():
            for gap in self._gaps.open():
                if gap.had:
                    self._gaps.keep(msgspec.structs.replace(gap, had=""))

    def brought_back(self, offset: Offset) -> None:
        """Close the gaps of a restored destination.

        This holds only if nothing was delivered since the gap was found.
        """
        had = _text(offset.sink_positions)
        if had and self.open:
            self.close({}, by="destination", remark=BACK_REMARK, closes=lambda gap: gap.had == had)

    def close(
        self,
        reread: dict[str, RereadTable],
        *,
        by: str,
        remark: str = "",
        closes: Callable[[CaptureGap], bool] = lambda _gap: True,
    ) -> None:
        """Close the open gaps for which ``closes`` is true."""
        with self._logged():
            for gap in filter(closes, self._gaps.open()):
                closed = msgspec.structs.replace(
                    gap, closed=moment(self._now_ms()), by=by, remark=remark, reread=reread
                )
                self._gaps.keep(closed)
        self.count()


def _ended(offset: Offset, error: DestinationBehind) -> Offset:
    """Return ``offset`` at the position where the destination ends."""
    if error.has is None:
        return offset
    partitions = {
        name: msgspec.structs.replace(each, position=error.has.get(name, Position(0)))
        for name, each in offset.partitions.items()
    }
    return msgspec.structs.replace(offset, partitions=partitions)


def _text(sink_positions: Mapping[str, Position]) -> str:
    return ", ".join(
        f"{name} {position}".strip() for name, position in sorted(sink_positions.items())
    )
