"""What may be wrong with a recording."""

from waltap.errors import SourceError

__all__ = ["RecordingDamaged", "RecordingUnfit"]


class RecordingDamaged(SourceError):
    """A file is no recording, or not a whole one."""

    code = "WT-2041"
    remedy = (
        "Give the file that `waltap record` wrote, as it was written: it is gzip, and copying it as text "
        "damages it. What stands before the damage was delivered."
    )


class RecordingUnfit(SourceError):
    """The decoder asks for something that the recording does not hold: it is another version than the one
    that recorded, or has other properties."""

    code = "WT-2042"
    remedy = "Replay {path} with waltap {version}, which recorded it."
