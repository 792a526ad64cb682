"""A scripted walsender: PostgreSQL's replication protocol over a real socket, from a script.

It makes corner cases and faults of the protocol repeatable: half frames, cuts, errors with their
SQLSTATE, keepalives that ask, silence; and it notes all feedback. Beside real servers, not instead.
"""

from waltap_testing.walsender.answers import (
    Answer,
    CommandAnswer,
    CopyOut,
    ReceivedQuery,
    RowsAnswer,
)
from waltap_testing.walsender.capture import WireCapture, load_capture
from waltap_testing.walsender.forward import READS, QueryForwarder
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
from waltap_testing.walsender.wire import StandbyStatus

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
    "StandbyStatus",
    "Step",
    "StreamScript",
    "WireCapture",
    "XLogData",
    "load_capture",
]
