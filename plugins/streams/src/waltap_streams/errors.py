"""Errors of message streams.

```
SinkError
├── StreamUnavailable   WT-5561   the server does not answer, or ended the connection
├── StreamRefused       WT-5562   the server refuses the user or the action
├── StreamMissing       WT-5563   the stream of a record is missing
├── StreamUnfit         WT-5564   the target cannot accept the record
├── StreamFull          WT-5565   the server accepts no records for now
└── StreamFenced        WT-5566   another instance took over
```
"""

from waltap.errors import RetryVerdict, SinkError

# Records without an acknowledgement are sent again.
StreamUnavailable = SinkError.define(
    "StreamUnavailable",
    "WT-5561",
    "The server does not answer, or ended the connection.",
    "A run that was connected reconnects by itself; otherwise check whether the server at {place} "
    "is up and can be reached, and whether it wants TLS.",
    retry=RetryVerdict.RECONNECT,
)
StreamRefused = SinkError.define(
    "StreamRefused",
    "WT-5562",
    "The server does not know the user or refuses the action.",
    "Correct user, password or credentials of the sink, and their rights at {place}: {rights}. "
    "Then start again: it continues where it stopped.",
)
StreamMissing = SinkError.define(
    "StreamMissing",
    "WT-5563",
    "The stream of a record is missing, and the sink creates none.",
    "Make it ({how}), or name another by {property}; then start again: nothing was confirmed.",
)
StreamUnfit = SinkError.define(
    "StreamUnfit",
    "WT-5564",
    "The target cannot accept a record as it is.",
    "Check that name and the limit of records at {place}. {property} names another place; a table "
    "[[transforms]] of type filter leaves records out. Nothing was confirmed.",
)
StreamFull = SinkError.define(
    "StreamFull",
    "WT-5565",
    "The server accepts no records: memory, space or quota is exhausted.",
    "Give {place} room: more memory or space, a bound of its "
    "streams ({property}), or a larger quota.",
    retry=RetryVerdict.RECONNECT,
)


class StreamFenced(SinkError):
    """Another instance of this pipeline has started to write there."""

    code = "WT-5566"
    remedy = (
        "Leave one instance of pipeline {pipeline} running; two pipelines need different names. "
        "Then start again: it continues after the stored position."
    )
