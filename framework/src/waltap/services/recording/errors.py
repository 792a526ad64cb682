"""Errors of recordings."""

from waltap.errors import SourceError

__all__ = ["RecordingDamaged", "RecordingUnfit"]


class RecordingDamaged(SourceError):
    """A file is no recording, or an incomplete one."""

    code = "WT-2041"
    remedy = (
        "Give the file that `waltap record` wrote, as it was written: it is gzip, and copying it as text "
        "damages it. What stands before the damage was delivered."
    )


class RecordingUnfit(SourceError):
    """The decoder asks a question that the recording does not answer.

    The decoder has another version or other properties than the recorded one.
    """

    code = "WT-2042"
    remedy = "Replay {path} with waltap {version}, which recorded it."
