"""An open replication stream: frames to messages, and what the server must hear from us.

The server ends a walsender that hears nothing for ``wal_sender_timeout``; so a small thread sends a
standby status update at a third of it, whatever the engine's thread is busy with. It sends only
what `confirm` was told.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from operator import itemgetter

from waltap.decode.decoder import Decoder
from waltap.decode.message import (
    Commit,
    CommitPrepared,
    Message,
    Prepare,
    StreamCommit,
    StreamPrepare,
)
from waltap.errors import ConnectionLost, SourceError
from waltap.source.connector import ChangeStream, StopRequested
from waltap.source.position import lsn_text
from waltap_postgres.errors import PublicationGone, SendFormatUnreadable
from waltap_postgres.replication.transport import ReplicationTransport
from waltap_postgres.replication.wire import status_update
from waltap_postgres.waiting import readable

__all__ = ["ReplicationStream", "start_replication_sql"]

_ENDS = frozenset((Commit, CommitPrepared, Prepare, StreamCommit, StreamPrepare))
JOIN_S = 0.5
NOTHING_FLUSHED = 0
"""An LSN that the server leaves out of account: a shutdown then waits for what was written alone."""
EPOCH_2000_US = 946_684_800_000_000
_lsn = itemgetter(0)


def start_replication_sql(slot: str, lsn: int, options: dict[str, str]) -> str:
    """Return the START_REPLICATION command; option names are quoted, values escaped."""
    listed = ", ".join(
        "\"{}\" '{}'".format(name, value.replace("'", "''")) for name, value in options.items()
    )
    tail = f" ({listed})" if listed else ""
    return f'START_REPLICATION SLOT "{slot}" LOGICAL {lsn_text(lsn)}{tail}'


class ReplicationStream(ChangeStream):
    """Messages of one START_REPLICATION, and its feedback."""

    def __init__(
        self,
        transport: ReplicationTransport,
        decoder: Decoder,
        *,
        confirmed: int,
        position: int = 0,
        status_interval: float,
        receive_timeout: float = 0.0,
        confirms: bool = True,
        ended: Callable[[PublicationGone | SendFormatUnreadable], SourceError] = lambda error: (
            error
        ),
    ) -> None:
        """Take ownership of a started ``transport``. ``status_interval`` in seconds, as
        ``receive_timeout`` (0: silence never counts as a lost link). ``ended`` returns what to raise
        when the slot cannot be read on, or not in this format. Without ``confirms`` the server hears
        that we are there, and never of a durable position: no status moves the slot. The stream starts at
        ``position``, where that is later than ``confirmed``, which the server may be told for now."""
        self.confirms = confirms
        self._ended = ended
        self._timeout_s = receive_timeout
        self._heard, self._asked = time.monotonic(), False
        self._transport, self._decoder = transport, decoder
        self._confirmed = confirmed
        self._received = max(confirmed, position)
        self._idle = 0
        self.committed = self._received
        """The end of the last transaction of which the end has come."""
        self._status_interval = status_interval
        self._send_lock = threading.Lock()
        self._stopping = threading.Event()
        self._urged = False
        self._failure: ConnectionLost | None = None
        self._feedback = threading.Thread(
            target=self._keep_alive, name="waltap-feedback", daemon=True
        )
        self._feedback.start()

    def receive(self, timeout: float) -> list[Message]:
        if self._failure is not None:
            raise self._failure
        transport = self._transport
        try:
            frames = transport.read(timeout)
        except (PublicationGone, SendFormatUnreadable) as error:
            told = self._ended(error)
            raise told from error if told is not error else None
        if transport.heard:
            transport.heard = False
            self._heard, self._asked = time.monotonic(), False
        elif self._timeout_s:
            self._listen()
        if transport.splitter.reply_requested:
            transport.splitter.reply_requested = False
            self._urged = True
            self._send_status()
        # What came with the answer to START_REPLICATION waits for the first call, while a keepalive
        # that came behind it is known already: nothing before it may count as read until now.
        self._idle = transport.splitter.wal_end
        if not frames:
            return []
        # Rows of a later transaction may lie before the last commit, and relations at 0.
        highest = max(map(_lsn, frames))
        self._received = max(self._received, highest)
        messages = self._decoder.feed(frames)
        # wal2json tells the end of a transaction in its text: its frame's LSN lies before that
        for message in reversed(messages):
            if type(message) in _ENDS:
                self.committed = message.end_lsn  # type: ignore[union-attr]
                self._received = max(self._received, self.committed)
                break
        return messages

    def _listen(self) -> None:
        """When the server has been silent for half of the receive timeout ask for a sign; at its end, ask
        another way whether it is busy. Raises: ConnectionLost, StopRequested."""
        now = time.monotonic()
        silence = now - self._heard
        if not self._asked and silence >= self._timeout_s / 2:
            # we may have been away for long: what counts from here is how long the question waits
            self._heard, self._asked = now - self._timeout_s / 2, True
            self._send_status(reply=True)
        elif self._asked and silence >= self._timeout_s:
            session = self._transport.session
            if not session.busy() and not readable(session.pgconn.socket):
                raise ConnectionLost(
                    f"nothing has come from the server for {self._timeout_s:g} s"
                    " (waltap.receive.timeout.ms)"
                )
            self._heard, self._asked = time.monotonic(), False

    def confirm(self, end_lsn: int) -> None:
        if end_lsn <= self._confirmed:
            return
        ceiling = max(self._received, self._transport.splitter.wal_end)
        assert end_lsn <= ceiling, (
            f"would confirm {lsn_text(end_lsn)}, server sent up to {lsn_text(ceiling)}"
        )
        self._confirmed = end_lsn
        self._send_status()

    def idle_lsn(self) -> int:
        return self._idle

    def urged(self) -> bool:
        urged, self._urged = self._urged, False
        return urged

    def ask(self) -> None:
        """Ask the server for a keepalive now, to learn how far it has read."""
        self._send_status(reply=True)

    def close(self) -> None:
        if self._stopping.is_set():
            return
        self._stopping.set()
        with suppress(ConnectionLost, StopRequested):
            self._send_status()
        self._feedback.join(JOIN_S)
        self._transport.close()

    def _send_status(self, *, reply: bool = False) -> None:
        with self._send_lock:
            clock = time.time_ns() // 1000 - EPOCH_2000_US
            written = max(self._received, self._confirmed)
            flushed = self._confirmed if self.confirms else NOTHING_FLUSHED
            self._transport.send(status_update(written, flushed, clock, reply=reply))

    def _keep_alive(self) -> None:
        while not self._stopping.wait(self._status_interval):
            try:
                self._send_status()
            except StopRequested:
                return
            except ConnectionLost as error:
                self._failure = error
                return
