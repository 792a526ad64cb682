"""Answers from a real server: a scripted stream with a real catalogue.

    with QueryForwarder(dsn) as catalogue:
        with ScriptedWalsender(script, answers={READS: catalogue}) as server:
            …

A test can thus point a whole engine at a scripted walsender without an answer for each catalogue
query.
"""

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Self

from waltap_testing.walsender.answers import Answer, CommandAnswer, ReceivedQuery, RowsAnswer
from waltap_testing.walsender.script import ServerError

if TYPE_CHECKING:
    from psycopg import pq

__all__ = ["READS", "QueryForwarder"]

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
        """Return the server's answer."""
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
