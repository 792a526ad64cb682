"""Offsets of a query, as Spark's checkpoint stores them."""

from dataclasses import dataclass
from typing import Any, Final

from waltap_sinks.changelog import NOTHING, LogPosition

# Of the offset's form in checkpoints, for a later release that changes it.
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class FirstLsn:
    """The LSN and epoch of a query's start.

    LSNs of two epochs do not compare.
    """

    epoch: int
    lsn: int

    @classmethod
    def of(cls, offset: dict[str, Any]) -> "FirstLsn | None":
        """Return an offset's start, None if all later rows follow it."""
        first = offset.get("first")
        return None if first is None else cls(first["epoch"], first["lsn"])

    def lies_behind(self, log_position: LogPosition) -> bool:
        """Return whether later manifests may have rows below it."""
        return (log_position.epoch, log_position.end_lsn) <= (self.epoch, self.lsn)


def offset_of(
    identity: str, log_position: LogPosition, first: FirstLsn | None = None
) -> dict[str, Any]:
    """Return the offset of ``log_position`` in the log ``identity``."""
    offset: dict[str, Any] = {
        "version": VERSION,
        "log": identity,
        "epoch": log_position.epoch,
        "end_lsn": log_position.end_lsn,
        "ordinal": log_position.ordinal,
    }
    if first is not None and first.lies_behind(log_position):
        offset["first"] = {"epoch": first.epoch, "lsn": first.lsn}
    return offset


def log_position_of(offset: dict[str, Any]) -> LogPosition:
    """Return the position of an offset."""
    return LogPosition(offset["epoch"], offset["end_lsn"], offset["ordinal"])


# The offset before everything, in a log that may not exist yet.
NOWHERE: Final = offset_of("", NOTHING)
