"""The scripted server, on a free port of 127.0.0.1."""

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from waltap_testing.walsender.answers import AnswerBook, Answering, ReceivedQuery
from waltap_testing.walsender.script import ServerError, Step, StreamScript
from waltap_testing.walsender.session import ClientSession
from waltap_testing.walsender.wire import StandbyStatus

# ParameterStatus messages of PostgreSQL 15 at the start of a connection.
PARAMETERS = {
    "server_version": "15.20",
    "server_encoding": "UTF8",
    "client_encoding": "UTF8",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "integer_datetimes": "on",
    "standard_conforming_strings": "on",
    "is_superuser": "on",
    "session_authorization": "postgres",
    "application_name": "",
    "default_transaction_read_only": "off",
    "in_hot_standby": "off",
}
# The values that SHOW returns.
SETTINGS = {
    "server_version": "15.20",
    "server_version_num": "150020",
    "wal_level": "logical",
    "wal_sender_timeout": "1min",
    "max_replication_slots": "10",
    "max_wal_senders": "10",
    "client_encoding": "UTF8",
    "server_encoding": "UTF8",
}


class ScriptFailed(AssertionError):
    """The client did not behave as the script expects."""


class ScriptedWalsender:
    """A PostgreSQL walsender that follows scripts and records the client.

        with ScriptedWalsender([XLogData(b"…", lsn=0x100), AwaitConfirmed(0x100)]) as server:
            consume(server.dsn)
        assert server.feedback[-1].flushed == 0x100

    - ``scripts``: the n-th START_REPLICATION, over all connections, plays the n-th script (a list
      of steps, or a `StreamScript`).
    - ``answers``: regular expression → answer to a query. Other queries get a walsender's reply; a
      query without an answer is an error and is listed in ``unanswered``.
    - ``refusals``: errors for the first connections, one each.

    It accepts any user without a password, refuses TLS, and listens on 127.0.0.1 only.

    Its threads need the interpreter's lock. A client in the same process must release the lock
    while it waits; psycopg's ``PGconn.connect`` and ``get_result`` do not.

    The end of the block closes every connection, waits for the threads, and raises `ScriptFailed`
    if a step waited without an answer or the client broke the protocol.
    """

    def __init__(
        self,
        *scripts: StreamScript | Sequence[Step],
        answers: Mapping[str, Answering] | None = None,
        settings: Mapping[str, str] | None = None,
        parameters: Mapping[str, str] | None = None,
        refusals: Sequence[ServerError] = (),
        system_id: str = "7000000000000000001",
        timeline: int = 1,
        database: str = "postgres",
        wal_end: int = 0x1000000,
    ) -> None:
        self._scripts = [
            s if isinstance(s, StreamScript) else StreamScript(tuple(s)) for s in scripts
        ]
        self._refusals = list(refusals)
        self._parameters = {**PARAMETERS, **(parameters or {})}
        self._book = AnswerBook(
            given=dict(answers or {}),
            settings={**SETTINGS, **(settings or {})},
            system_id=system_id,
            timeline=timeline,
            database=database,
            wal_end=wal_end,
        )
        self.database = database
        self.sessions: list[ClientSession] = []
        # The number of START_REPLICATION commands so far.
        self.streams = 0
        self._changed = threading.Condition()
        self._since = time.monotonic()
        self._listener: socket.socket | None = None
        self._threads: list[threading.Thread] = []

    # --- address and records ---

    @property
    def port(self) -> int:
        """Return the TCP port. Raises: RuntimeError outside the ``with`` block."""
        if self._listener is None:
            raise RuntimeError("the scripted server runs inside its with block only")
        return int(self._listener.getsockname()[1])

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres dbname={self.database}"

    @property
    def feedback(self) -> list[StandbyStatus]:
        """Return the status updates of all connections, by time of arrival."""
        with self._changed:
            updates = [update for session in self.sessions for update in session.feedback]
        return sorted(updates, key=lambda update: update.seconds)

    @property
    def queries(self) -> list[str]:
        """Return the text of every query, connection by connection."""
        return [query.text for session in self.sessions for query in session.queries]

    @property
    def unanswered(self) -> list[ReceivedQuery]:
        return [query for session in self.sessions for query in session.unanswered]

    def wait(self, until: Callable[["ScriptedWalsender"], bool], within: float = 60.0) -> None:
        """Wait until ``until(self)`` is true.

        Raises: ScriptFailed when it is not true ``within`` seconds.
        """
        with self._changed:
            held = self._changed.wait_for(lambda: until(self), within)
        if not held:
            raise ScriptFailed(f"what the test waited for did not come within {within} s")

    # --- life ---

    def __enter__(self) -> Self:
        # A condition over a re-entrant lock: `wait` may read `feedback`, which takes it again.
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._since = time.monotonic()
        self._spawn(self._accept, self._listener)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            listener.close()
        for session in self.sessions:
            session.drop()
        for thread in self._threads:
            thread.join(10)
        failures = [session.failure for session in self.sessions if session.failure]
        # An error of the test itself is the cause, not its consequence: it must not be replaced.
        if failures and error is None:
            raise ScriptFailed("; ".join(failures))

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            session = ClientSession(
                connection,
                answers=self._book,
                next_script=self._next_script,
                parameters=self._parameters,
                refusal=self._refusals.pop(0) if self._refusals else None,
                changed=self._changed,
                started=self._since,
            )
            with self._changed:
                self.sessions.append(session)
                self._changed.notify_all()
            self._spawn(session.serve)

    def _next_script(self) -> StreamScript | None:
        with self._changed:
            number, self.streams = self.streams, self.streams + 1
            self._changed.notify_all()
        return self._scripts[number] if number < len(self._scripts) else None

    def _spawn(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()
