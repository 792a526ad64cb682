"""One connection to the scripted server: start-up, queries and scripts.

The reader thread receives messages and records status updates at once, even while a script sends.
The player thread answers. Both end with the socket.
"""

import contextlib
import queue
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from waltap_testing.walsender import script, wire
from waltap_testing.walsender.answers import (
    Answer,
    AnswerBook,
    CommandAnswer,
    ReceivedQuery,
    RowsAnswer,
)
from waltap_testing.walsender.script import ServerError, StreamScript

# The server speaks protocol 3.0 and negotiates newer minor versions down to it.
SPOKEN_MINOR = 0
# How long an orderly close waits for the client, so that the last bytes are not reset away.
LAST_WORDS_SECONDS = 5.0
# Values of the startup parameter ``replication`` that request a replication connection.
REPLICATES = ("true", "on", "yes", "1", "database")


class _ConversationEnded(Exception):
    """The client left, or the script closed the connection."""


class ClientSession:
    """The record of one client. A test may read its lists at any time: they only grow."""

    def __init__(
        self,
        connection: socket.socket,
        *,
        answers: AnswerBook,
        next_script: Callable[[], StreamScript | None],
        parameters: dict[str, str],
        refusal: ServerError | None,
        changed: threading.Condition,
        started: float,
    ) -> None:
        self.parameters: dict[str, str] = {}
        self.queries: list[ReceivedQuery] = []
        self.unanswered: list[ReceivedQuery] = []
        self.feedback: list[wire.StandbyStatus] = []
        self.failure: str | None = None
        self.ended = False
        self._socket = connection
        self._answers, self._next_script = answers, next_script
        self._settings, self._refusal = parameters, refusal
        self._changed, self._since = changed, started
        # None in the queue is the end of the connection.
        self._inbox: queue.SimpleQueue[tuple[bytes, bytes] | None] = queue.SimpleQueue()
        self._disconnected = self._done = False
        # Number of status updates when the last frame was sent: `AwaitFeedback` counts from there.
        self._heard = 0
        self._transaction = "I"
        self._statements: dict[bytes, ReceivedQuery] = {}
        self._portals: dict[bytes, tuple[ReceivedQuery, Answer]] = {}
        # Without TCP_NODELAY the kernel would merge the small writes of `SendPieces`.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    # --- threads ---

    def serve(self) -> None:
        """Serve the client until it leaves; the player thread runs this."""
        try:
            reader = self._start_up()
            if reader is None:
                return
            thread = threading.Thread(target=self._read, args=(reader,), daemon=True)
            thread.start()
            try:
                self._converse()
            finally:
                self._part()
                thread.join()
        except (_ConversationEnded, OSError):
            pass
        except (ValueError, UnicodeDecodeError, struct.error) as wrong:
            self._fail(f"the client sent what no client sends: {wrong}")
        finally:
            self.drop()
            with self._changed:
                self.ended = True
                self._changed.notify_all()

    def drop(self, *, reset: bool = False) -> None:
        """Close the connection silently. Any thread may call it."""
        with contextlib.suppress(OSError):
            if reset:
                # Closing alone would wait for the reader's recv, and lingering for 0 s turns the
                # close into a reset; ending only the receiving side sends nothing.
                linger = struct.pack("ii", 1, 0)
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._socket.shutdown(socket.SHUT_RD if reset else socket.SHUT_RDWR)
        self._socket.close()

    def _part(self) -> None:
        """Close in order: sent data arrives while the client sends."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        with self._changed:
            self._changed.wait_for(lambda: self._disconnected, LAST_WORDS_SECONDS)
        self.drop()

    def _read(self, messages: wire.FrontendMessages) -> None:
        try:
            while data := self._socket.recv(65536):
                for item in messages.feed(data):
                    if not isinstance(item, wire.StartupMessage):
                        self._take(*item)
        except ValueError as wrong:
            self._fail(f"the client sent what no client sends: {wrong}")
        except OSError:
            pass
        with self._changed:
            self._disconnected = True
            self._changed.notify_all()
        self._inbox.put(None)

    def _take(self, kind: bytes, body: bytes) -> None:
        # Only CopyData, CopyDone and CopyFail are recorded here; the player handles the rest.
        if kind not in (b"d", b"c", b"f"):
            self._inbox.put((kind, body))
            return
        with self._changed:
            if kind == b"d":
                update = wire.parse_feedback(body, time.monotonic() - self._since)
                if update is not None:
                    self.feedback.append(update)
            else:
                self._done = True
            self._changed.notify_all()

    # --- start-up ---

    def _start_up(self) -> wire.FrontendMessages | None:
        messages = wire.FrontendMessages()
        while data := self._socket.recv(65536):
            for item in messages.feed(data):
                if not isinstance(item, wire.StartupMessage):
                    self._take(*item)
                elif item.code in (wire.SSL, wire.GSS):
                    # Neither TLS nor GSS: the client continues in plain text or gives up.
                    self._send(b"N")
                elif item.code == wire.CANCEL:
                    return None
                else:
                    self.parameters = item.parameters
                    if self._refusal is not None:
                        self._send(self._refusal.encoded())
                        return None
                    self._welcome(item)
                    return messages
        return None

    def _welcome(self, startup: wire.StartupMessage) -> None:
        greeting = b""
        extensions = [name for name in startup.parameters if name.startswith("_pq_.")]
        if startup.code & 0xFFFF > SPOKEN_MINOR or extensions:
            greeting = wire.negotiate_version(SPOKEN_MINOR, extensions)
        greeting += wire.message(b"R", bytes(4))  # AuthenticationOk: any user is accepted
        for name, value in self._settings.items():
            greeting += wire.parameter_status(name, value)
        key = struct.pack("!II", 4711, 42)
        self._send(greeting + wire.message(b"K", key) + wire.ready("I"))

    # --- queries ---

    def _converse(self) -> None:
        failed = False
        while (item := self._inbox.get()) is not None:
            kind, body = item
            if kind == b"X":
                return
            if kind == b"Q":
                self._simple(body.rstrip(b"\0").decode())
            elif kind == b"S":
                failed = False
                self._send(wire.ready(self._transaction))
            elif not failed:
                failed = not self._extended(kind, body)

    def _simple(self, text: str) -> None:
        query = ReceivedQuery(text)
        self.queries.append(query)
        if text.lstrip().upper().startswith("START_REPLICATION"):
            refused = self._answers.scripted(query)
            if refused is None:
                self._replicate(text)
                return
            self._give(refused)
        else:
            self._give(self._answer(query))
        self._send(wire.ready(self._transaction))

    def _answer(self, query: ReceivedQuery) -> Answer:
        answer = self._answers.find(query)
        if answer is None:
            self.unanswered.append(query)
            return ServerError("0A000", f"the scripted server has no answer to: {query.text}")
        word = query.text.lstrip()[:6].upper()
        if isinstance(answer, CommandAnswer) and word.startswith("BEGIN"):
            self._transaction = "T"
        elif word in ("COMMIT", "ROLLBA"):
            self._transaction = "I"
        return answer

    def _give(self, answer: Answer, *, described: bool = False) -> None:
        if isinstance(answer, ServerError):
            self._send(answer.encoded())
            if answer.severity != "ERROR":
                raise _ConversationEnded
        elif isinstance(answer, CommandAnswer):
            self._send(wire.command_complete(answer.tag))
        elif isinstance(answer, RowsAnswer):
            head = b"" if described else wire.row_description(answer.described())
            rows = b"".join(wire.data_row(row) for row in answer.rows)
            self._send(head + rows + wire.command_complete(f"SELECT {len(answer.rows)}"))
        else:
            count = answer.columns
            self._send(wire.message(b"H", struct.pack(f"!bh{count}h", 0, count, *[0] * count)))
            self._send(b"".join(map(wire.copy_data, answer.chunks)))
            self._send(wire.message(b"c") + wire.command_complete(f"COPY {len(answer.chunks)}"))

    def _extended(self, kind: bytes, body: bytes) -> bool:
        """Answer one message of the extended protocol.

        Return False after an error: the protocol skips messages until Sync.
        """
        # A real walsender refuses the extended protocol with this error.
        if self.parameters.get("replication", "").lower() in REPLICATES:
            text = "extended query protocol not supported in a replication connection"
            self._send(ServerError("08P01", text).encoded())
            return False
        if kind == b"P":
            name, sql, rest = body.split(b"\0", 2)
            (count,) = struct.unpack_from("!h", rest)
            types = struct.unpack_from(f"!{count}I", rest, 2)
            self._statements[name] = ReceivedQuery(sql.decode(), types=types)
            self._send(wire.message(b"1"))
        elif kind == b"B":
            portal, name, rest = body.split(b"\0", 2)
            query = replace(self._statements[name], parameters=_bound(rest))
            self.queries.append(query)
            self._portals[portal] = query, self._answer(query)
            self._send(wire.message(b"2"))
        elif kind == b"C":
            self._send(wire.message(b"3"))
        elif kind == b"D" and body[:1] == b"P":
            answer = self._portals[body[1:].rstrip(b"\0")][1]
            columns = answer.described() if isinstance(answer, RowsAnswer) else []
            self._send(wire.row_description(columns) if columns else wire.message(b"n"))
        elif kind == b"D":
            query = self._statements[body[1:].rstrip(b"\0")]
            # The answer may depend on the bound values, which are not known yet.
            text = f"describing a statement before it is bound: {query.text}"
            self._send(ServerError("0A000", text).encoded())
            return False
        elif kind == b"E":
            answer = self._portals[body.split(b"\0", 1)[0]][1]
            self._give(answer, described=True)
            return not isinstance(answer, ServerError)
        return True

    # --- replication ---

    def _replicate(self, command: str) -> None:
        stream = self._next_script()
        if stream is None:
            error = ServerError("55000", "the scripted server has no further script")
            self._send(error.encoded() + wire.ready("I"))
            return
        if not re.search(stream.matches, command):
            text = f"the script expects {stream.matches!r}, the client asked: {command}"
            self._fail(text)
            self._send(ServerError("22023", text).encoded() + wire.ready("I"))
            return
        self._done = False
        self._send(wire.message(b"W", struct.pack("!bh", 0, 0)))  # CopyBothResponse
        for step in stream.steps:
            if self._done:
                break
            if not self._play(step):
                return
        self._wait(lambda: self._done, None)
        farewell = wire.message(b"c") + wire.command_complete("COPY 0")
        self._send(farewell + wire.command_complete("START_REPLICATION") + wire.ready("I"))

    def _play(self, step: script.Step) -> bool:
        """Play one step; return False if it ended the stream."""
        match step:
            case script.XLogData() | script.SendKeepalive() | script.SendRaw():
                self._heard = len(self.feedback)
                self._send(step.encoded())
            case script.SendPieces(of, sizes, gap):
                self._heard = len(self.feedback)
                data = of.encoded()
                for size in sizes:
                    self._send(data[:size])
                    data = data[size:]
                    self._wait(lambda: self._done, gap)
                self._send(data)
            case script.SendHalf(of, keep):
                self._send(of.encoded()[:keep])
            case script.PauseSeconds(seconds):
                self._wait(lambda: self._done, seconds)
            case script.AwaitConfirmed(lsn, within):
                self._expect(
                    lambda: any(update.flushed >= lsn for update in self.feedback),
                    within,
                    f"LSN {lsn:#x} was never confirmed",
                )
            case script.AwaitFeedback(count, within):
                self._heard += count
                self._expect(
                    lambda: len(self.feedback) >= self._heard,
                    within,
                    f"no {count} status updates came",
                )
            case ServerError():
                self._send(step.encoded())
                if step.severity != "ERROR":
                    raise _ConversationEnded
                self._send(wire.ready("I"))
                return False
            case script.CopyDone():
                self._send(wire.message(b"c"))
                self._wait(lambda: self._done, None)
                self._send(wire.command_complete("COPY 0"))
                self._send(wire.command_complete("START_REPLICATION") + wire.ready("I"))
                return False
            case script.CutConnection(reset):
                if reset:
                    self.drop(reset=True)
                raise _ConversationEnded
        return True

    def _expect(self, holds: Callable[[], bool], within: float, otherwise: str) -> None:
        if not self._wait(lambda: holds() or self._done, within):
            self._fail(f"{otherwise} within {within} s")
            raise _ConversationEnded

    def _wait(self, holds: Callable[[], bool], seconds: float | None) -> bool:
        """Wait until ``holds`` or the timeout; return whether it holds.

        Raises: _ConversationEnded when the client leaves first.
        """
        with self._changed:
            self._changed.wait_for(lambda: holds() or self._disconnected, seconds)
            if self._disconnected and not holds():
                raise _ConversationEnded
            return holds()

    def _fail(self, text: str) -> None:
        with self._changed:
            self.failure = self.failure or text
            self._changed.notify_all()

    def _send(self, data: bytes) -> None:
        self._socket.sendall(data)


def _bound(rest: bytes) -> tuple[str | bytes | None, ...]:
    """Return a Bind message's parameter values after its two names.

    Raises: ValueError when the client requests binary results.
    """
    (count,) = struct.unpack_from("!h", rest)
    formats = struct.unpack_from(f"!{count}h", rest, 2)
    at = 2 + 2 * count
    (count,) = struct.unpack_from("!h", rest, at)
    at += 2
    # One format code applies to all parameters, none means text (manual, "Bind").
    binary = formats * count if len(formats) == 1 else formats or (0,) * count
    values: list[str | bytes | None] = []
    for number in range(count):
        (size,) = struct.unpack_from("!i", rest, at)
        at += 4
        value = rest[at : at + size]
        values.append(None if size < 0 else value if binary[number] else value.decode())
        at += max(size, 0)
    (results,) = struct.unpack_from("!h", rest, at)
    if any(struct.unpack_from(f"!{results}h", rest, at + 2)):
        raise ValueError("binary results: the scripted server speaks text")
    return tuple(values)
