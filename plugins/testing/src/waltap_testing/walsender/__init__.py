"""A scripted walsender: PostgreSQL's replication protocol over a real socket, from a script.

It makes corner cases and faults of the protocol repeatable: half frames, cuts, errors with their
SQLSTATE, keepalives that ask, silence; and it notes all feedback. Beside real servers, not instead.
"""

from waltap_testing.walsender.answers import Answer, CopyOut, Done, Query, Rows
from waltap_testing.walsender.capture import Capture, load_capture
from waltap_testing.walsender.forward import READS, Forward
from waltap_testing.walsender.script import (
    Confirmed,
    CopyDone,
    Cut,
    Half,
    Heard,
    Keepalive,
    Pause,
    Pieces,
    Raw,
    Script,
    ServerError,
    Step,
    XLogData,
)
from waltap_testing.walsender.server import ScriptFailed, Walsender
from waltap_testing.walsender.wire import Feedback

__all__ = [
    "READS",
    "Answer",
    "Capture",
    "Confirmed",
    "CopyDone",
    "CopyOut",
    "Cut",
    "Done",
    "Feedback",
    "Forward",
    "Half",
    "Heard",
    "Keepalive",
    "Pause",
    "Pieces",
    "Query",
    "Raw",
    "Rows",
    "Script",
    "ScriptFailed",
    "ServerError",
    "Step",
    "Walsender",
    "XLogData",
    "load_capture",
]
