"""Properties of the connector ``recording``."""

from waltap.base.property import Properties, declare


class RecordingProperties(Properties):
    """The recording to run."""

    path: str = declare(
        "recording.path",
        summary="File that `waltap record` wrote.",
        examples=("monday.recording",),
        path=True,
    )
