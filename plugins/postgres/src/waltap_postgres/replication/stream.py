"""An open replication stream: decoded messages and feedback.

The server ends a walsender without feedback for ``wal_sender_timeout``. So a small thread sends a
standby status update at a third of that time, even while the engine's thread is busy. It sends
only positions that `confirm` received.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from operator import itemgetter

from waltap.base.plugin_errors import usable
from waltap.changes.decode.decoder import Decoder
from waltap.changes.decode.frame_block import FrameBlock
from waltap.changes.decode.message import (
    Commit,
    CommitPrepared,
    Message,
    Prepare,
    StreamCommit,
    StreamPrepare,
    TransactionBlock,
)
from waltap.changes.transactions.position import lsn_text
from waltap.errors import ConnectionLost, SourceError, StopRequested
from waltap.ports.source.connector import ChangeStream
from waltap_postgres.errors import PublicationGone
from waltap_postgres.replication.transport import ReplicationTransport
from waltap_postgres.replication.wire import status_update
from waltap_postgres.waiting import readable

_ENDS = frozenset((Commit, CommitPrepared, Prepare, StreamCommit, StreamPrepare, TransactionBlock))
JOIN_S = 0.5
# The server ignores this LSN; its shutdown then waits for the written position alone.
NOTHING_FLUSHED = 0
# The protocol's clock starts at 2000-01-01.
EPOCH_2000_US = 946_684_800_000_000
_lsn = itemgetter(0)


# Fewer frames say nothing of what comes.
MANY_FRAMES = 16


class ReplicationStream(ChangeStream):
    """Receive messages of one START_REPLICATION and send feedback."""

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
        ended: Callable[[SourceError], SourceError] = lambda error: error,
    ) -> None:
        """Take ownership of a started ``transport``.

        ``status_interval`` and ``receive_timeout`` are seconds; with a timeout of 0, silence is
        never a lost link. ``ended`` returns the error to raise when the slot is no longer readable.
        The stream starts at the later of ``position`` and ``confirmed``.
        """
        # Without it, statuses keep the session alive but never advance the slot.
        self.confirms = confirms
        self._ended = ended
        self._timeout_s = receive_timeout
        self._heard, self._asked = time.monotonic(), False
        self._transport, self._decoder = transport, decoder
        self._confirmed = confirmed
        self._received = max(confirmed, position)
        self._idle = 0
        # End of the last transaction whose end has arrived.
        self.committed = self._received
        self._status_interval = status_interval
        self._send_lock = threading.Lock()
        self._stopping = threading.Event()
        self._reply_requested = False
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
        except PublicationGone as error:
            explained = self._ended(error)
            raise explained from error if explained is not error else None
        if transport.heard:
            transport.heard = False
            self._heard, self._asked = time.monotonic(), False
        elif self._timeout_s:
            self._listen()
        if transport.splitter.reply_requested:
            transport.splitter.reply_requested = False
            self._reply_requested = True
            self._send_status()
        # Frames that came with the answer to START_REPLICATION wait for the first call, but a later
        # keepalive is known already. Nothing before that keepalive counts as read until now.
        self._idle = transport.splitter.wal_end
        if not frames:
            return []
        # Rows of a later transaction may have LSNs before the last commit; relations have LSN 0.
        highest = frames.highest if isinstance(frames, FrameBlock) else max(map(_lsn, frames))
        self._received = max(self._received, highest)
        messages = self._decoder.feed(frames)
        # Each reading passes here, so a call only for a wrong result.
        if not isinstance(messages, list):
            usable(messages, list, self._decoder, "feed")
        if len(frames) >= MANY_FRAMES:
            transport.adapt(len(frames), len(messages))
        # wal2json has the end of a transaction in its text; the frame's LSN is before that.
        for message in reversed(messages):
            if type(message) in _ENDS:
                self.committed = message.end_lsn  # type: ignore[union-attr]
                self._received = max(self._received, self.committed)
                break
        return messages

    def _listen(self) -> None:
        """Detect a lost link by the server's silence.

        After half of the receive timeout, ask for a keepalive. After all of it, ask over another
        connection whether the server is busy. Raises: ConnectionLost, StopRequested.
        """
        now = time.monotonic()
        silence = now - self._heard
        if not self._asked and silence >= self._timeout_s / 2:
            # The engine may not have read for long, so only the time since this request counts.
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
        # Confirming a position that the server has not sent would skip changes.
        ceiling = max(self._received, self._transport.splitter.wal_end)
        assert end_lsn <= ceiling, (
            f"would confirm {lsn_text(end_lsn)}, server sent up to {lsn_text(ceiling)}"
        )
        self._confirmed = end_lsn
        self._send_status()

    def idle_lsn(self) -> int:
        return self._idle

    def reply_requested(self) -> bool:
        reply_requested, self._reply_requested = self._reply_requested, False
        return reply_requested

    def request_keepalive(self) -> None:
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
        # The engine's thread and the feedback thread both send.
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
