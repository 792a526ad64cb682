"""Snapshot modes as predicates of what is known at a start."""

import abc
from dataclasses import dataclass

__all__ = ["Known", "Snapshotter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a start knows: is there a stored offset, was a snapshot left incomplete, and can the
    server still stream from the stored position. ``reconnects``: this is no start, but a link that
    broke in mid-run and came back."""

    offset: bool
    snapshot_incomplete: bool
    position_available: bool
    reconnects: bool = False


class Snapshotter(abc.ABC):
    """One ``snapshot.mode``."""

    @abc.abstractmethod
    def takes_snapshot(self, known: Known) -> bool:
        """Tell whether rows are read before streaming. Raises: SnapshotError when the mode forbids
        this start."""

    @abc.abstractmethod
    def streams(self, known: Known) -> bool:
        """Tell whether streaming follows."""

    def resumes(self, known: Known) -> bool:
        """Tell whether a snapshot that was left incomplete may go on, rather than be taken anew. Asked
        when this start takes one and both could be done."""
        return True

    def recovers_lost_position(self) -> bool:
        """Tell whether a lost position is answered by a new snapshot rather than an error."""
        return False
