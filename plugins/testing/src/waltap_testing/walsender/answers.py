"""Answers of the scripted server to queries.

The test's own answers come first, then the replies of any walsender.
"""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from waltap.changes.transactions.position import lsn_text
from waltap_testing.walsender.script import ServerError

if TYPE_CHECKING:
    from psycopg import pq


TEXT, INT4, INT8 = 25, 23, 20


@dataclass(frozen=True, slots=True)
class ReceivedQuery:
    """One query that the client sent."""

    text: str
    # Values bound by the extended protocol; bytes where the client sent the binary form.
    parameters: tuple[str | bytes | None, ...] = ()
    # Type OIDs of the parameters; 0 where the client left the type to the server.
    types: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RowsAnswer:
    """A result set."""

    # Names, or (name, type OID).
    columns: Sequence[str | tuple[str, int]]
    # Values as text; None is NULL.
    rows: Sequence[Sequence[str | None]] = ()

    def described(self) -> list[tuple[str, int]]:
        """Return the columns with type OIDs; the default type is text."""
        return [(c, TEXT) if isinstance(c, str) else c for c in self.columns]


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """The result of a command that returns no rows."""

    tag: str


@dataclass(frozen=True, slots=True)
class CopyOut:
    """The result of ``COPY … TO STDOUT``: one chunk per row."""

    chunks: Sequence[bytes]
    columns: int = 1


Answer = RowsAnswer | CommandAnswer | CopyOut | ServerError
Answering = Answer | Sequence[Answer | None] | Callable[[ReceivedQuery], Answer]
"""An answer, several answers, or a function of the query.

Several answers are used in their order, and the last one repeats. None in the list means the walsender's
own reply.
"""


@dataclass(slots=True)
class AnswerBook:
    """The server's answers to queries."""

    # Regular expression → answer. The server searches the query, ignores case, and uses the first
    # match.
    given: Mapping[str, Answering]
    # Parameter → value, for SHOW.
    settings: Mapping[str, str]
    system_id: str
    timeline: int
    database: str
    wal_end: int
    # How often each pattern was answered, for several answers.
    _used: dict[str, int] = field(default_factory=dict)

    def find(self, query: ReceivedQuery) -> Answer | None:
        """Return the test's answer, else the walsender's; None: unknown query."""
        answer = self.scripted(query)
        return self._own(query.text.strip().rstrip(";")) if answer is None else answer

    def scripted(self, query: ReceivedQuery) -> Answer | None:
        for pattern, answering in self.given.items():
            if re.search(pattern, query.text, re.IGNORECASE | re.DOTALL):
                if isinstance(answering, Sequence):
                    used = self._used.get(pattern, 0)
                    self._used[pattern] = used + 1
                    return answering[min(used, len(answering) - 1)]
                return answering(query) if callable(answering) else answering
        return None

    def _own(self, text: str) -> Answer | None:
        words = text.split()
        match [word.upper() for word in words[:1]]:
            case ["IDENTIFY_SYSTEM"]:
                columns = [("systemid", TEXT), ("timeline", INT8), ("xlogpos", TEXT)]
                row = [self.system_id, str(self.timeline), lsn_text(self.wal_end), self.database]
                return RowsAnswer([*columns, ("dbname", TEXT)], [row])
            case ["SHOW"] if len(words) == 2:
                name = words[1].lower()
                if name in self.settings:
                    return RowsAnswer([name], [[self.settings[name]]])
                return ServerError("42704", f'unrecognized configuration parameter "{name}"')
            case ["CREATE_REPLICATION_SLOT"]:
                return self._slot(text)
            case ["DROP_REPLICATION_SLOT"]:
                return CommandAnswer("DROP_REPLICATION_SLOT")
            case [("BEGIN" | "COMMIT" | "ROLLBACK" | "SET") as word]:
                return CommandAnswer(word)
        return None

    def _slot(self, text: str) -> Answer:
        found = re.match(
            r'CREATE_REPLICATION_SLOT\s+("?)(\w+)\1\s+(?:TEMPORARY\s+)?LOGICAL\s+("?)(\w+)\3(.*)',
            text,
            re.IGNORECASE | re.DOTALL,
        )
        if found is None:
            return ServerError("42601", "syntax error")
        name, plugin, options = found[2], found[4], found[5]
        # The client reads the snapshot's name from this row; without an export the column is NULL.
        exports = not re.search(r"'(nothing|use)'|NOEXPORT|USE_SNAPSHOT", options, re.IGNORECASE)
        columns = ["slot_name", "consistent_point", "snapshot_name", "output_plugin"]
        snapshot = "00000003-00000001-1" if exports else None
        return RowsAnswer(columns, [[name, lsn_text(self.wal_end), snapshot, plugin]])


# Answers from a real server: a scripted stream with a real catalogue.
#
# with QueryForwarder(dsn) as catalogue: with ScriptedWalsender(script, answers={READS:
# catalogue}) as server: …
#
# A test can thus point a whole engine at a scripted walsender without an answer for each
# catalogue query.

# Queries that change nothing on the server, or only settings of the session.
READS = r"^\s*(SELECT|WITH|SET|SHOW|RESET)\b"


class QueryForwarder:
    """Runs queries one after another on the server of ``dsn``.

    It needs psycopg. Close it before the test drops the database: an open connection blocks DROP
    DATABASE.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._lock = threading.Lock()
        self._connection: pq.abc.PGconn | None = None

    def __call__(self, query: ReceivedQuery) -> Answer:
        from psycopg import pq

        with self._lock:
            if self._connection is None:
                self._connection = pq.PGconn.connect(self._dsn.encode())
            result = _run(self._connection, query)
        if result.status == pq.ExecStatus.TUPLES_OK:
            return _rows(result)
        if result.status == pq.ExecStatus.COMMAND_OK:
            return CommandAnswer((result.command_status or b"").decode())
        # 08006 (connection failure): libpq sets no SQLSTATE when the connection is lost.
        sqlstate = result.error_field(pq.DiagnosticField.SQLSTATE) or b"08006"
        text = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message
        return ServerError(sqlstate.decode(), text.decode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.finish()
                self._connection = None


def _run(connection: "pq.abc.PGconn", query: ReceivedQuery) -> "pq.abc.PGresult":
    if not query.parameters:
        return connection.exec_(query.text.encode())
    values = [v.encode() if isinstance(v, str) else v for v in query.parameters]
    formats = [int(isinstance(value, bytes)) for value in query.parameters]
    types = query.types or None
    return connection.exec_params(query.text.encode(), values, types, formats)


def _rows(result: "pq.abc.PGresult") -> RowsAnswer:
    columns = [((result.fname(n) or b"").decode(), result.ftype(n)) for n in range(result.nfields)]
    rows = [
        [_text(result.get_value(row, column)) for column in range(result.nfields)]
        for row in range(result.ntuples)
    ]
    return RowsAnswer(columns, rows)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
