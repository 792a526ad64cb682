"""Recordings: a stream of a server in a file, with all that its decoder asked, to be run again."""

from waltap.recording.errors import RecordingDamaged, RecordingUnfit
from waltap.recording.recorder import recorded

__all__ = ["RecordingDamaged", "RecordingUnfit", "recorded"]
