"""A snapshot mode: reads the tables at the first start, and again when the position is lost."""

from waltap.snapshot import Known, Snapshotter


class Resnapshot(Snapshotter):
    """Decides from what a start knows; nothing else may count: no clock, no database."""

    def takes_snapshot(self, known: Known) -> bool:
        """Tell whether the tables are read before streaming."""
        return not known.offset or known.snapshot_incomplete or not known.position_available

    def streams(self, known: Known) -> bool:
        """Tell whether streaming follows."""
        return True

    def recovers_lost_position(self) -> bool:
        """A lost position is answered by a new snapshot, not by an error."""
        return True
