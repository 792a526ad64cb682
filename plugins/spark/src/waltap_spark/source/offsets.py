"""What a checkpoint says of one change log: its mark, which log it is, and the LSN that is waited for."""

from dataclasses import dataclass
from typing import Any, Final

from waltap_sinks.changelog import NOTHING, LogPosition

__all__ = ["NOWHERE", "FirstLsn", "mark_of", "offset_of"]

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class FirstLsn:
    """The LSN that a query was started at, and the epoch that the log was in then: LSNs of others do not
    compare with it."""

    epoch: int
    lsn: int

    @classmethod
    def of(cls, offset: dict[str, Any]) -> "FirstLsn | None":
        """Return that of an offset, None where nothing behind it lies below; so it is in those of earlier
        versions, which did not say: rather a row of the first flush too many than one too few."""
        told = offset.get("first")
        return None if told is None else cls(told["epoch"], told["lsn"])

    def lies_behind(self, mark: LogPosition) -> bool:
        """Tell whether manifests after ``mark`` may have rows below it."""
        return (mark.epoch, mark.end_lsn) <= (self.epoch, self.lsn)


def offset_of(identity: str, mark: LogPosition, first: FirstLsn | None = None) -> dict[str, Any]:
    """Return the offset of ``mark`` in the log ``identity``, with ``first`` while it is of use."""
    offset: dict[str, Any] = {
        "version": VERSION,
        "log": identity,
        "epoch": mark.epoch,
        "end_lsn": mark.end_lsn,
        "ordinal": mark.ordinal,
    }
    if first is not None and first.lies_behind(mark):
        offset["first"] = {"epoch": first.epoch, "lsn": first.lsn}
    return offset


def mark_of(offset: dict[str, Any]) -> LogPosition:
    """Return the mark of an offset."""
    return LogPosition(offset["epoch"], offset["end_lsn"], offset["ordinal"])


NOWHERE: Final = offset_of("", NOTHING)
"""The offset before everything, in a log that may not be there yet."""
