"""Transports of COPY data: the socket, or libpq if it is encrypted."""

import abc
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import psycopg
from psycopg import pq

from waltap.changes.decode.decoder import Frame
from waltap.errors import ConnectionLost, StopRequested, WaltapError
from waltap_postgres.connection import PostgresSession, driver_error, server_error
from waltap_postgres.replication.copy_buffer import CopyBuffer, HeadedRows
from waltap_postgres.replication.wire import CopyEnded, CopySplitter, ReplicationSplitter
from waltap_postgres.waiting import POLL_S, WRITE

RECEIVE_BYTES = 1 << 20
# Columns are cheaper the more rows they have. Rows are cheaper while they stay in the processor's
# cache, so a read is smaller where small frames are decoded one by one.
ROW_RECEIVE_BYTES = 1 << 18
SMALL_FRAME_BYTES = 1 << 10
START_DEADLINE_S = 60.0
SEND_DEADLINE_S = 30.0
CLOSE_DEADLINE_S = 1.0
# Frames that one read through libpq returns at most.
MOST_FRAMES = 8192
# A walsender writes one row at a time, and to read each at once costs both sides a wake-up per row.
# So while data flows (the last came less than FLOW_GAP_S ago), it collects for GATHER_S in the
# socket's buffer. Data after a pause is returned at once, for latency.
GATHER_S = 0.001
FLOW_GAP_S = 0.002

T = TypeVar("T", bytes, int)


class ReplicationTransport(abc.ABC):
    """Transport an open START_REPLICATION stream.

    `send` may run in another thread than `read`; its callers share a lock.
    """

    # Set by anything that arrives, even if it is no frame.
    heard = False
    _receive_bytes = RECEIVE_BYTES

    def __init__(self, session: PostgresSession) -> None:
        self.session = session
        self.splitter = ReplicationSplitter()
        self._last_data = 0.0

    def adapt(self, frames: int, messages: int) -> None:
        """Choose the next read's size from the last one's counts."""
        small = frames * SMALL_FRAME_BYTES >= self._receive_bytes
        one_by_one = messages * 8 >= frames * 7
        self._receive_bytes = ROW_RECEIVE_BYTES if small and one_by_one else RECEIVE_BYTES

    def _gather(self) -> None:
        """Wait for more data while data flows."""
        if time.monotonic() - self._last_data < FLOW_GAP_S:
            time.sleep(GATHER_S)

    @abc.abstractmethod
    def start(self, sql: str) -> None:
        """Run START_REPLICATION and wait until streaming has begun. Raises: SourceError."""

    @abc.abstractmethod
    def read(self, timeout: float) -> Sequence[Frame]:
        """Return the arrived frames, none after ``timeout`` seconds.

        Raises: ConnectionLost, SourceError.
        """

    @abc.abstractmethod
    def send(self, message: bytes) -> None:
        """Send a complete CopyData message, header included. Raises: ConnectionLost."""

    @abc.abstractmethod
    def close(self) -> None:
        """End the stream and the connection."""

    def _keeps_taking(self, began: float) -> None:
        """Raise ConnectionLost if a message has waited too long. Raises: StopRequested."""
        self.session.watch.check(began)
        if time.monotonic() > began + SEND_DEADLINE_S:
            raise ConnectionLost("the server no longer accepts messages")

    def server_error(self, fields: Mapping[str, str]) -> WaltapError:
        """Return the error for the end of the stream."""
        if not fields:
            return ConnectionLost("the server ended the replication stream")
        text = fields.get("M", "unknown error")
        # The first line of the context names the slot, the output plugin and the LSN.
        if context := fields.get("W"):
            text = f"{text} ({context.splitlines()[0]})"
        report = self.session.properties, fields.get("C", ""), text, fields.get("R", "")
        return server_error(*report, plugin=self.session.plugin, streaming=True)


class SocketTransport(ReplicationTransport):
    """Read the socket of an idle libpq connection directly.

    Only closing the connection uses libpq.
    """

    def __init__(self, session: PostgresSession) -> None:
        super().__init__(session)
        # Frames that arrived together with the answer to START_REPLICATION.
        self._early: list[Frame] = []
        self._socket = socket.socket(fileno=socket.dup(session.pgconn.socket))
        self._socket.setblocking(False)
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)

    def start(self, sql: str) -> None:
        query = sql.encode() + b"\0"
        self.send(b"Q" + (len(query) + 4).to_bytes(4, "big") + query)
        early: list[Frame] = []
        began = time.monotonic()
        while not self.splitter.started:
            early += self._receive(POLL_S)
            self.session.watch.check(began)
            if time.monotonic() > began + START_DEADLINE_S:
                raise ConnectionLost(f"replication did not start within {START_DEADLINE_S:.0f} s")
        self._early = early

    def read(self, timeout: float) -> Sequence[Frame]:
        if self._early:
            early, self._early = self._early, []
            return early
        return self._receive(timeout)

    def _receive(self, timeout: float) -> Sequence[Frame]:
        self._gather()
        data = self._take()
        if data is None:
            if not self._readable.poll(timeout * 1000):
                return []
            data = self._take()
            if data is None:
                return []
        self._last_data = time.monotonic()
        self.heard = True
        try:
            return self.splitter.split(data)
        except CopyEnded as end:
            raise self.server_error(end.fields) from end

    def _take(self) -> bytes | None:
        """Return the data in the socket, None without any."""
        try:
            data = self._socket.recv(self._receive_bytes)
        except BlockingIOError:
            return None
        except OSError as error:
            raise ConnectionLost(f"connection to the server broke: {error}") from error
        if not data:
            raise ConnectionLost("the server closed the connection")
        return data

    def send(self, message: bytes) -> None:
        rest = memoryview(message)
        began = time.monotonic()
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                select.select([], [self._socket], [], POLL_S)
                self._keeps_taking(began)
            except OSError as error:
                raise ConnectionLost(f"connection to the server broke: {error}") from error

    def close(self) -> None:
        with suppress(OSError):
            self._socket.setblocking(True)
            self._socket.settimeout(CLOSE_DEADLINE_S)
            # CopyDone.
            self._socket.sendall(b"c\0\0\0\x04")
        with suppress(OSError):
            self._socket.close()
        self.session.leave()


class LibpqTransport(ReplicationTransport):
    """Read and write through libpq, which TLS and GSS need."""

    def __init__(self, session: PostgresSession) -> None:
        super().__init__(session)
        # Neither libpq's connection nor OpenSSL's allows two threads at once, so this lock guards
        # every call. No thread holds it while it waits for data.
        self._lock = threading.Lock()

    def start(self, sql: str) -> None:
        pgconn = self.session.pgconn
        result = self.session.result(sql)
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise self.session.error(result)
        self._poll = select.poll()
        self._poll.register(pgconn.socket, select.POLLIN)

    def read(self, timeout: float) -> Sequence[Frame]:
        frames: list[Frame] = []
        self._gather()
        with self._lock:
            self._drain(frames)
        wait_ms = 0.0 if frames else timeout * 1000
        while len(frames) < MOST_FRAMES and self._poll.poll(wait_ms):
            self.heard = True
            with self._lock:
                try:
                    self.session.pgconn.consume_input()
                except psycopg.Error as error:
                    raise ConnectionLost(f"connection to the server broke: {error}") from error
                self._drain(frames)
            wait_ms = 0.0
        if frames:
            self._last_data = time.monotonic()
        return frames

    def _drain(self, frames: list[Frame]) -> None:
        pgconn, take = self.session.pgconn, self.splitter.data
        try:
            while True:
                size, data = pgconn.get_copy_data(1)
                if size <= 0:
                    break
                take(bytes(data), frames)
        except psycopg.Error as error:
            raise ConnectionLost(f"connection to the server broke: {error}") from error
        if size == -1:
            result = pgconn.get_result()
            if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
                raise self.session.error(result, streaming=True)
            raise ConnectionLost("the server ended the replication stream")

    def send(self, message: bytes) -> None:
        pgconn = self.session.pgconn
        began = time.monotonic()
        try:
            with self._lock:
                # libpq writes the header itself.
                pgconn.put_copy_data(message[5:])
                rest = pgconn.flush()
            while rest:
                # Over TLS a write may wait for something to be read first.
                select.select([pgconn.socket], [pgconn.socket], [], POLL_S)
                self._keeps_taking(began)
                with self._lock:
                    pgconn.consume_input()
                    rest = pgconn.flush()
        except psycopg.Error as error:
            raise ConnectionLost(f"connection to the server broke: {error}") from error

    def close(self) -> None:
        with self._lock, suppress(psycopg.Error):
            self.session.pgconn.put_copy_end()
            self.session.pgconn.flush()
        self.session.leave()


def open_transport(session: PostgresSession) -> ReplicationTransport:
    """Return the fastest transport that ``session`` allows."""
    return LibpqTransport(session) if encrypted(session) else SocketTransport(session)


def encrypted(session: PostgresSession) -> bool:
    """Return whether TLS or GSS hides the socket's data."""
    gss = session.properties.parameters.get("gssencmode", "disable")
    return session.pgconn.ssl_in_use or gss != "disable"


def copy_out(
    session: PostgresSession, sql: str, buffer: CopyBuffer | None = None
) -> Iterator[HeadedRows | bytes]:
    """Run a COPY … TO STDOUT; yield its data.

    The answer is complete only when the iterator ends: an error can follow rows. With a ``buffer``,
    portions of its size may be `HeadedRows`, which need numpy. Raises: SourceError, ConnectionLost,
    StopRequested.
    """
    try:
        if encrypted(session):
            yield from _copy_by_libpq(session, sql)
        else:
            yield from _copy_by_socket(session, sql, buffer)
    except StopRequested:
        # The connection is in the middle of COPY and no longer usable.
        session.cancel()
        session.close()
        raise


def _copy_by_socket(
    session: PostgresSession, sql: str, buffer: CopyBuffer | None
) -> Iterator[HeadedRows | bytes]:
    connection = socket.socket(fileno=socket.dup(session.pgconn.socket))
    try:
        connection.setblocking(False)
        query = sql.encode() + b"\0"
        rest = memoryview(b"Q" + (len(query) + 4).to_bytes(4, "big") + query)
        waiting = session.watch.waiting(session.pgconn)
        while rest:
            if waiting.ready(connection.fileno(), WRITE):
                rest = rest[connection.send(rest) :]
        if buffer is None:
            splitter = CopySplitter()
            while not splitter.done:
                data = _received(session, lambda: connection.recv(RECEIVE_BYTES))
                if payloads := splitter.split(data):
                    yield b"".join(payloads)
            return
        while not buffer.done:
            buffer.filled_by(_received(session, lambda: connection.recv_into(buffer.room())))
            yield from buffer.rows()
    except OSError as error:
        raise ConnectionLost(f"connection to the server broke during COPY: {error}") from error
    except CopyEnded as end:
        get = end.fields.get
        report = get("C", ""), get("M", "COPY failed"), get("R", "")
        raise server_error(session.properties, *report) from end
    finally:
        connection.close()


def _received(session: PostgresSession, receive: Callable[[], T]) -> T:
    """Return the data, or its size, that ``receive`` takes from the socket."""
    while True:
        try:
            found = receive()
        except BlockingIOError:
            session.wait_readable()
            continue
        if not found:
            raise ConnectionLost("the server closed the connection during COPY")
        return found


def _copy_by_libpq(session: PostgresSession, sql: str) -> Iterator[bytes]:
    pgconn = session.pgconn
    result = session.result(sql)
    if result.status != pq.ExecStatus.COPY_OUT:
        raise session.error(result)
    rows: list[bytes] = []
    size_held = 0
    try:
        while True:
            size, data = pgconn.get_copy_data(1)
            if size < 0:
                break
            if not size:
                session.wait_readable()
                pgconn.consume_input()
                continue
            rows.append(bytes(data))
            size_held += size
            if size_held >= RECEIVE_BYTES:
                yield b"".join(rows)
                rows, size_held = [], 0
    except psycopg.Error as error:
        raise driver_error(error, session.properties) from error
    # The connection is usable again after the last result.
    results = list(iter(pgconn.get_result, None))
    for end in results:
        if end.status == pq.ExecStatus.FATAL_ERROR:
            raise session.error(end)
    if rows:
        yield b"".join(rows)
