"""What the connector of recordings can be told."""

from waltap.config.property import Properties, declare

__all__ = ["RecordingProperties"]


class RecordingProperties(Properties):
    """Which recording is run."""

    path: str = declare(
        "recording.path",
        summary="File that `waltap record` wrote.",
        examples=("monday.recording",),
        path=True,
    )
