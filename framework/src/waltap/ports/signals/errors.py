"""Errors of signals.

The engine logs the errors that have a code; a signal stops no pipeline.
"""

from waltap.errors import SnapshotError


class SignalUnusable(ValueError):
    """The engine cannot act on a signal; the text says why.

    The engine logs it as WT-4101 and ignores the signal. Actions of plugins raise it too.
    """


SignalIgnored = SnapshotError.define(
    "SignalIgnored",
    "WT-4101",
    "A signal, or a part of it, is not valid and was ignored.",
    "Send it again, corrected: type is execute-snapshot, stop-snapshot, pause-snapshot, "
    "resume-snapshot, log, or a type of a plugin (`waltap plugins`); data is a JSON object, for "
    "snapshots with data-collections, type, additional-conditions, surrogate-key.",
)
TableNotRead = SnapshotError.define(
    "TableNotRead",
    "WT-4102",
    "A table of a signal is not read; the pipeline reads the others.",
    "Name captured tables (table.include.list) as schema.table, and GRANT SELECT on them. A table "
    "without a key needs one by message.key.columns or surrogate-key; rows that the sink already "
    "has then come twice, and snapshot.mode=always replaces them. Then signal again.",
)
SignalTableUnusable = SnapshotError.define(
    "SignalTableUnusable",
    "WT-4103",
    "Watermarks cannot be written to the signal table; snapshots are cancelled.",
    "CREATE TABLE … (id varchar(42) PRIMARY KEY, type varchar(32) NOT NULL, data varchar(2048) "
    "NULL); GRANT SELECT, INSERT, DELETE on it; name it in signal.data.collection; then signal "
    "again.",
)
