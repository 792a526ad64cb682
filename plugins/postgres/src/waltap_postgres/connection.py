"""Open connections with their session settings, and translate libpq's errors."""

import ipaddress
import logging
import os
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from waltap.base.redaction import Secret, without_frames
from waltap.errors import (
    ConfigurationError,
    ConnectionLost,
    RetryVerdict,
    SystemRefused,
    WaltapError,
)
from waltap.ports.source.session import DEAD_LINK, PINNED, SETTINGS, beginning, startup_options
from waltap_postgres.connection_errors import (
    NO_WALSENDER,
    PoolerInTheWay,
    certificate_refused,
    password_outdated,
    pooler_of_text,
)
from waltap_postgres.errors import (
    AuthenticationRefused,
    PrivilegeMissing,
    ServerUnreachable,
    grant_for,
)
from waltap_postgres.properties import PostgresProperties
from waltap_postgres.waiting import CANCEL_S, POLL_S, READ, WRITE, ServerWaits, cancel

log = logging.getLogger(__name__)


# Resolve the names of hosts in a wait that a stop ends.
#
# The system's resolver blocks its caller, for half a minute if name servers do not answer. psycopg
# calls it in the caller's thread before it connects, unless it gets addresses.


def with_addresses(conninfo: str, resolved: Callable[[str, str], list[str]]) -> str:
    """Return libpq's connection string with the hosts' addresses.

    ``resolved`` returns the addresses of a host and port. A host with several is repeated for each,
    in their order. Raises: psycopg.OperationalError for a name without an address; what
    ``resolved`` raises but OSError, such as StopRequested, or UnicodeError for an invalid name.
    """
    parameters = conninfo_to_dict(conninfo)
    if parameters.get("hostaddr") or not parameters.get("host"):
        return conninfo
    hosts = str(parameters["host"]).split(",")
    ports = str(parameters.get("port") or "").split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    if len(ports) != len(hosts) or not any(map(_is_name, hosts)):
        return conninfo
    found: list[tuple[str, str, str]] = []
    refused: OSError | None = None
    for host, port in zip(hosts, ports, strict=True):
        if not _is_name(host):
            found.append((host, "" if host.startswith("/") else host, port))
            continue
        try:
            found += [(host, address, port) for address in resolved(host, port)]
        except OSError as error:
            refused = error
    if not found:
        raise psycopg.OperationalError(f"failed to resolve host {hosts[0]!r}: {refused}")
    names, addresses, found_ports = (",".join(column) for column in zip(*found, strict=True))
    return make_conninfo(conninfo, host=names, hostaddr=addresses, port=found_ports)


def _is_name(host: str) -> bool:
    if not host or host.startswith(("/", "@")):
        return False  # the folder of a socket
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return False
    return True


def _resolved(watch: ServerWaits, host: str, port: str) -> list[str]:
    # A stop leaves the thread behind, because nothing can end the resolver's wait.
    answer: Future[list[str]] = Future()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(
                host, port or None, proto=socket.IPPROTO_TCP, type=socket.SOCK_STREAM
            )
            answer.set_result([str(one[4][0]) for one in found])
        except (OSError, UnicodeError) as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name="waltap-resolver", daemon=True).start()
    began = time.monotonic()
    while not wait([answer], POLL_S).done:
        watch.check(began)
        if watch.deadline_s is not None and time.monotonic() - began >= watch.deadline_s:
            raise psycopg.OperationalError(f"{host} was not resolved in {watch.deadline_s:.0f} s")
    return answer.result()


CONNECT_TIMEOUT_S = 15
REMEMBERED = (
    "SELECT pg_catalog.set_config('waltap.users_path', pg_catalog.current_setting('search_path'),"
    " false)"
)
USERS_PATH = b"SELECT set_config('search_path', current_setting('waltap.users_path'), false)"
# The stream waits meanwhile.
BEAT_LOCK_MS = 1000
BEAT_LOCKS = (
    f"SELECT set_config('lock_timeout', '{BEAT_LOCK_MS}', false)"
    " WHERE current_setting('lock_timeout') = '0'"
)
LEAVE_S, LEAVE_BYTES = 1.0, 1 << 20
MIN_ASK_S = 1.0
MEANWHILE_S = 0.5

PRINTS_TREES = (
    "SET LOCAL client_min_messages = log; SET LOCAL debug_pretty_print = off;"
    " SET LOCAL debug_print_parse = on"
)
PRINTS_NO_TREES = "SET LOCAL debug_print_parse = off; SET LOCAL client_min_messages TO DEFAULT"

BUSY_SQL = b"""
SELECT CASE WHEN wait_event_type = 'Lock' THEN pg_blocking_pids(pid) END, left(query, 200)
  FROM pg_stat_activity
 WHERE pid = %s AND state <> 'idle' AND coalesce(wait_event_type, '') NOT IN ('Client', 'Activity')
"""

# The answer of a server, in any language: SQLSTATE, message.
ANSWERED = re.compile(r":  (?:([0-9A-Z]{5}): )?(.*)")

COPYING = frozenset((pq.ExecStatus.COPY_OUT, pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_BOTH))


def conninfo(
    properties: PostgresProperties,
    *,
    role: str,
    replication: bool = False,
    stopping: Callable[[], bool] = lambda: False,
) -> str:
    """Return libpq's connection string.

    ``role`` is the connection's purpose (application_name). ``stopping`` ends the wait for a command
    that prints the password. Raises: WaltapError, StopRequested.
    """
    own = properties.parameters
    host, port = properties.addresses
    parameters: dict[str, Any] = {
        "host": host,
        "port": port,
        "user": properties.user,
        "password": properties.secret(stopping),
        "dbname": properties.dbname,
        "sslmode": properties.sslmode,
        "sslcert": properties.sslcert,
        "sslkey": properties.sslkey,
        "sslpassword": properties.sslpassword,
        "sslrootcert": properties.sslrootcert,
        "gssencmode": "disable",
        "keepalives": int(properties.tcp_keepalive),
        **(DEAD_LINK if properties.tcp_keepalive else {}),
        "connect_timeout": CONNECT_TIMEOUT_S,
        "application_name": f"waltap {role}",
        "replication": "database" if replication else None,
    }
    parameters.update(own)
    parameters["options"] = f"{own.get('options', '')} {startup_options()}".strip()
    return make_conninfo(**{name: value for name, value in parameters.items() if value is not None})


def watch(
    properties: PostgresProperties, stopping: Callable[[], bool] = lambda: False
) -> ServerWaits:
    """Return the rules for waits of a profile's connections."""
    timeout_s = properties.receive_timeout_ms / 1000

    def ask(pgconn: "pq.abc.PGconn") -> bool:
        return busy(properties, pgconn, stopping, within_s=max(MIN_ASK_S, timeout_s / 4))

    return ServerWaits(stopping, timeout_s=timeout_s, busy=ask)


def busy(
    properties: PostgresProperties,
    pgconn: "pq.abc.PGconn",
    stopping: Callable[[], bool],
    *,
    within_s: float,
) -> bool:
    """Return whether the server still works for ``pgconn``.

    The question uses another connection. A backend that is idle or waits for the client does not
    work: a request or its answer is lost. So it is without an answer ``within_s`` seconds. A server
    that refuses the question is alive. Raises: StopRequested.
    """
    where = {"host": pgconn.host, "hostaddr": pgconn.hostaddr, "port": pgconn.port}
    own = {f"driver.{name}": value.decode() for name, value in where.items() if value}
    own["driver.connect_timeout"] = str(max(2, round(within_s)))
    there = properties.model_copy(update={"libpq": {**properties.libpq, **own}})
    brief = ServerWaits(stopping, deadline_s=within_s)
    try:
        with closing(_opened(there, role="question", watch=brief)) as connection:
            row = connection.execute(BUSY_SQL, (pgconn.backend_pid,)).fetchone()
    except ConnectionLost:
        return False
    except (WaltapError, psycopg.Error):
        return True
    if row is not None and row[0]:
        # The run says nothing else for as long as it waits.
        log.warning(
            "waiting for a lock that another session holds (pid %s): %s",
            ", ".join(str(pid) for pid in row[0]),
            " ".join(row[1].split()),
        )
    return row is not None


def _opened(
    properties: PostgresProperties,
    *,
    role: str,
    watch: ServerWaits,
    replication: bool = False,
    plugin: str = "",
) -> psycopg.Connection[tuple[Any, ...]]:
    """Open a connection in autocommit.

    Raises: SourceError, StopRequested; ConfigurationError for unknown parameters of libpq.
    """
    # psycopg waits in Python; PQconnectdb would block every other thread.
    try:
        text = Secret(
            conninfo(properties, role=role, replication=replication, stopping=watch.stopping)
        )
        addressed = with_addresses(text, partial(_resolved, watch))
        connection = watch.connection_class.connect(addressed, autocommit=True)
        try:
            settings = {} if properties.start_options_pass else SETTINGS
            beginning_sql = beginning(connection.info.server_version, settings=settings)
            connection.execute(beginning_sql.encode())
        except BaseException:
            connection.close()
            raise
    except psycopg.Error as error:
        without_frames(error)
        words = str(error).strip()
        unsent = isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None
        # libpq refuses the connection string itself.
        if unsent or re.match(r"invalid \S+ value", words):
            raise ConfigurationError.of(
                ", ".join(sorted(properties.libpq)) or "database.*",
                words,
                allowed="what libpq's documentation says of it",
            ) from error
        meaning = driver_error(error, properties, plugin)
        if isinstance(meaning, AuthenticationRefused) and properties.changing_password:
            meaning = password_outdated(meaning, words) or meaning
        raise meaning from error
    except UnicodeError as error:
        why = str(error).rpartition("UnicodeError: ")[2].rstrip(")")
        raise ConfigurationError.of(
            "database.hostname", f"is not the name of a host: {why}"
        ) from error
    return connection


def identify(properties: PostgresProperties) -> dict[str, str]:
    """Return the facts about the connection for errors, without password."""
    return {
        "slot": properties.slot_name,
        "user": properties.user,
        "database": properties.dbname,
        "publication": properties.publication_name,
        "address": f"{properties.hostname:.80}:{properties.port}",
    }


def driver_error(
    error: psycopg.Error,
    properties: PostgresProperties,
    plugin: str = "",
    *,
    streaming: bool = False,
) -> WaltapError:
    """Return the error for a psycopg error. ``streaming`` is as for `server_error`."""
    text = str(error.diag.message_primary or error).strip()
    if error.sqlstate is None and isinstance(error, psycopg.OperationalError):
        return unreachable(text, properties)
    report = error.sqlstate or "", text, error.diag.source_function or ""
    return server_error(properties, *report, plugin=plugin, streaming=streaming)


def server_error(
    properties: PostgresProperties,
    sqlstate: str,
    text: str,
    function: str,
    *,
    plugin: str = "",
    streaming: bool = False,
) -> WaltapError:
    """Return the error for a message of the server's ``function``.

    ``streaming``: the message ended a stream of changes.
    """
    meanings = properties.meanings
    meaning = meanings.of_stream if streaming else meanings.of_query
    return meaning(sqlstate, text, function=function, plugin=plugin, **identify(properties))


def unreachable(text: str, properties: PostgresProperties) -> WaltapError:
    """Return the error for a failed connection attempt."""
    lines = text.strip().splitlines() or ["connection failed"]
    answer = ANSWERED.search(text)
    refused = None if answer else SystemRefused.of_text(lines[0])
    if refused is not None:
        return refused
    sqlstate, line = answer.groups(default="") if answer else ("", lines[0].strip())
    facts = identify(properties)
    known = pooler_of_text(line, facts["address"]) or certificate_refused(line, facts["address"])
    if known is not None:
        return known
    if "no password supplied" in line:
        sqlstate = "28P01"  # libpq says so, not the server
    if sqlstate[:2] in {"28", "3D"} or sqlstate in {"42501", "53300"}:
        return properties.meanings.of_query(sqlstate, line, **facts)
    return ServerUnreachable(line, **facts)


def connect(
    properties: PostgresProperties, *, role: str, watch: ServerWaits
) -> psycopg.Connection[tuple[Any, ...]]:
    """Open an ordinary connection in autocommit.

    Raises: SourceError, ConfigurationError; StopRequested, as every query over it.
    """
    connection = _opened(properties, role=role, watch=watch)
    try:
        _begin_as_user_wants(connection, properties)
    except BaseException as error:
        connection.close()
        if isinstance(error, psycopg.Error):
            raise driver_error(error, properties) from error
        raise
    return connection


def _begin_as_user_wants(
    connection: "psycopg.Connection[tuple[Any, ...]]", properties: PostgresProperties
) -> None:
    """Run ``database.initial.statements`` and store their search_path."""
    timeout = f"SET statement_timeout = {properties.query_timeout_ms}"
    # The profile's own SQL runs with that path.
    before, after = f"{timeout}; SET search_path TO DEFAULT", f"{REMEMBERED}; {PINNED}"
    own = _statements(properties.initial_statements)
    if not own:
        connection.execute(f"{before}; {after}".encode())
        return
    connection.execute(before.encode())
    for statement in own:
        try:
            connection.execute(statement.encode())
        except (psycopg.ProgrammingError, psycopg.DataError) as error:
            if isinstance(error, psycopg.errors.InsufficientPrivilege):
                raise
            raise ConfigurationError.of(
                "database.initial.statements",
                f"the server refuses it: {str(error).strip().splitlines()[0]}",
            ) from error
    connection.execute(after.encode())


@contextmanager
def users_path(connection: "psycopg.Connection[tuple[Any, ...]]") -> Iterator[None]:
    """Resolve names as in a session of the profile's user.

    ``connection`` comes from `connect`.
    """
    connection.execute(USERS_PATH)
    try:
        yield
    finally:
        if not connection.closed:
            connection.execute(PINNED.encode())


@contextmanager
def _beat_locks(connection: "psycopg.Connection[tuple[Any, ...]]") -> Iterator[None]:
    """Wait for locks for `BEAT_LOCK_MS` if the profile sets no lock_timeout.

    The block's transaction is rolled back if it failed, or has not ended.
    """
    # Not in a transaction: the profile's query may begin its own.
    bounded = connection.execute(BEAT_LOCKS.encode()).rowcount
    try:
        yield
    finally:
        if not connection.closed:
            connection.rollback()  # a transaction of the query that failed
        if bounded and not connection.closed:
            connection.execute(b"SET lock_timeout = 0")


def run_heartbeat_query(
    connection: "psycopg.Connection[tuple[Any, ...]]", properties: PostgresProperties
) -> None:
    """Run ``heartbeat.action.query``, if the profile has one.

    A query that the server refuses, or that a lock blocks, is a warning. Raises: SourceError for a
    failure that may pass.
    """
    if properties.heartbeat_action_query is None:
        return
    try:
        with users_path(connection), _beat_locks(connection):
            connection.execute(properties.heartbeat_action_query.encode())
    except psycopg.Error as error:
        meaning = driver_error(error, properties)
        if meaning.retry is not RetryVerdict.NEVER:
            raise meaning from error
        grant = ""
        if isinstance(meaning, PrivilegeMissing):
            refusal = meaning.problem, properties.user, error.diag.source_function or ""
            grant = f"; {grant_for(*refusal, rights='SELECT, INSERT, UPDATE, DELETE')} lets it"
        log.warning(
            "heartbeat.action.query failed: %s%s",
            meaning.problem,
            grant,
            extra={"error_code": meaning.code},
        )


def _statements(text: str | None) -> Sequence[str]:
    """Split at ``;`` as Debezium does: ``;;`` is a literal semicolon."""
    if not text:
        return ()
    parts = text.replace(";;", "\0").split(";")
    return [part.replace("\0", ";").strip() for part in parts if part.strip()]


def text_rows(result: "pq.abc.PGresult") -> list[tuple[str | None, ...]]:
    """Return the rows of a result as printed text."""
    return [
        tuple(
            None if (value := result.get_value(row, column)) is None else value.decode()
            for column in range(result.nfields)
        )
        for row in range(result.ntuples)
    ]


class PostgresSession:
    """Run replication commands, and COPY that is read from the socket.

    It works at libpq's level. ``connection`` is the psycopg connection for ordinary queries.
    """

    def __init__(
        self,
        properties: PostgresProperties,
        *,
        role: str,
        watch: ServerWaits,
        replication: bool = False,
        plugin: str = "",
    ) -> None:
        """Open the connection. Raises: SourceError, ConfigurationError, StopRequested."""
        self.properties, self.plugin, self.watch = properties, plugin, watch
        self.replication = replication
        self.connection = _opened(
            properties, role=role, watch=watch, replication=replication, plugin=plugin
        )
        self.pgconn = self.connection.pgconn
        self.pgconn.notice_handler = None

    def execute(self, sql: str) -> list[tuple[str | None, ...]]:
        """Return a simple query's rows as text. Raises: SourceError, StopRequested."""
        result = self.result(sql)
        if result.status in {pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK}:
            return text_rows(result)
        raise self.error(result)

    def result(
        self,
        sql: str,
        *,
        parse_only: bool = False,
        meanwhile: Callable[[float], None] | None = None,
    ) -> "pq.abc.PGresult":
        """Run a query, or only parse it, and return its last result.

        The first result that begins a COPY is returned instead. A failed query is a result, too.
        ``meanwhile`` is called twice a second with the seconds since the command until the answer
        comes; its exception cancels the command. Raises: ConnectionLost, StopRequested.
        """
        pgconn, query, last = self.pgconn, sql.encode(), None
        began = time.monotonic()
        due = began + MEANWHILE_S
        try:
            if parse_only:
                pgconn.send_prepare(b"", query)
            else:
                pgconn.send_query(query)
            waiting = self.watch.waiting(pgconn)
            while pgconn.flush():
                if waiting.ready(pgconn.socket, READ | WRITE) & READ:
                    pgconn.consume_input()
            while True:
                while pgconn.is_busy():
                    if waiting.ready(pgconn.socket, READ):
                        pgconn.consume_input()
                    elif meanwhile is not None and time.monotonic() >= due:
                        meanwhile(time.monotonic() - began)
                        due = time.monotonic() + MEANWHILE_S
                result = pgconn.get_result()
                if result is None:
                    break
                last = result
                if result.status in COPYING:
                    break
        except psycopg.Error as error:
            raise driver_error(error, self.properties, self.plugin) from error
        except ConnectionLost:
            self.close()
            raise
        except BaseException:
            self.cancel()
            raise
        assert last is not None
        return last

    def parsed(self, sql: str) -> str:
        """Return the parse tree of one statement as the server prints it.

        The server neither plans nor runs the statement. A transaction must be open. Raises:
        SourceError, StopRequested.
        """
        details: list[str] = []

        def keep(notice: "pq.abc.PGresult") -> None:
            details.append((notice.error_field(pq.DiagnosticField.MESSAGE_DETAIL) or b"").decode())

        self.execute(PRINTS_TREES)
        self.pgconn.notice_handler = keep
        try:
            result = self.result(sql, parse_only=True)
        finally:
            self.pgconn.notice_handler = None
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise self.error(result)
        self.execute(PRINTS_NO_TREES)
        return next((text for text in details if text.lstrip().startswith("{QUERY")), "")

    def cancel(self) -> None:
        """Cancel the running command, or close the connection after a while."""
        deadline = time.monotonic() + CANCEL_S
        with suppress(psycopg.Error):
            cancel(self.connection)
            while self.pgconn.is_busy() and time.monotonic() < deadline:
                select.select([self.pgconn.socket], [], [], POLL_S)
                self.pgconn.consume_input()
            while not self.pgconn.is_busy():
                result = self.pgconn.get_result()
                if result is None:
                    return
                if result.status in COPYING:
                    break
        self.close()

    def wait_readable(self) -> None:
        """Wait until the socket has data. Raises: ConnectionLost, StopRequested."""
        waiting = self.watch.waiting(self.pgconn)
        while not waiting.ready(self.pgconn.socket, READ):
            pass

    def busy(self) -> bool:
        """Return whether the server still works for this connection."""
        return self.watch.busy is not None and self.watch.busy(self.pgconn)

    def error(self, result: "pq.abc.PGresult", *, streaming: bool = False) -> WaltapError:
        """Return the error for a failed result. ``streaming`` is as for `server_error`."""
        error = psycopg.errors.error_from_result(result)
        if error.sqlstate is None:
            return unreachable(str(error), self.properties)
        text = error.diag.message_primary or ""
        if self.replication and error.sqlstate == "42601" and NO_WALSENDER.search(text):
            return PoolerInTheWay(
                f"this is no replication connection, though it was asked for one: {text}",
                address=identify(self.properties)["address"],
            )
        return driver_error(error, self.properties, self.plugin, streaming=streaming)

    def close(self) -> None:
        self.connection.close()

    def leave(self) -> None:
        """Close the connection and wait a moment for the server's end.

        Only then can another connection use the walsender and the slot.
        """
        with (
            suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(self.pgconn.socket)) as link,
        ):
            self.close()
            link.shutdown(socket.SHUT_WR)
            deadline = time.monotonic() + LEAVE_S
            # A server inside a large transaction may send for a long time.
            while (remaining := deadline - time.monotonic()) > 0:
                link.settimeout(remaining)
                if not link.recv(LEAVE_BYTES):
                    break
        self.close()
