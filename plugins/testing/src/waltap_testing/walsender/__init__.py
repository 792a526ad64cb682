"""A scripted walsender: the replication protocol on a real socket.

Use it to repeat corner cases and faults of the protocol: partial frames, closed connections,
errors with their SQLSTATE, keepalives that request a reply, and silence. It records all feedback.
It complements tests on real servers and does not replace them.
"""

from waltap_testing.walsender.answers import (
    READS,
    Answer,
    CommandAnswer,
    CopyOut,
    QueryForwarder,
    ReceivedQuery,
    RowsAnswer,
)
from waltap_testing.walsender.script import (
    AwaitConfirmed,
    AwaitFeedback,
    CopyDone,
    CutConnection,
    PauseSeconds,
    SendHalf,
    SendKeepalive,
    SendPieces,
    SendRaw,
    ServerError,
    Step,
    StreamScript,
    XLogData,
)
from waltap_testing.walsender.server import ScriptedWalsender, ScriptFailed

__all__ = [
    "READS",
    "Answer",
    "AwaitConfirmed",
    "AwaitFeedback",
    "CommandAnswer",
    "CopyDone",
    "CopyOut",
    "CutConnection",
    "PauseSeconds",
    "QueryForwarder",
    "ReceivedQuery",
    "RowsAnswer",
    "ScriptFailed",
    "ScriptedWalsender",
    "SendHalf",
    "SendKeepalive",
    "SendPieces",
    "SendRaw",
    "ServerError",
    "Step",
    "StreamScript",
    "XLogData",
]
