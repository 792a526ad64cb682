"""Write JSON lines, one object per record, to a file or stdout.

A line is ``{"topic", "key", "value", "headers"}``. Key and value are the rendered JSON, not strings of it.
``value`` is null for a tombstone, ``key`` for a record without a key. ``headers`` is a list of
``{"key", "value"}``.
"""

import contextlib
import errno
import logging
import os
import select
import stat
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from waltap.base.files.durable_file import sync
from waltap.base.files.location import refusal
from waltap.base.property import Properties, declare
from waltap.changes.transactions.position import Position, Positions
from waltap.changes.transactions.transaction import Batch
from waltap.encoders.format.record_block import MixedRecords, RecordBlock
from waltap.encoders.json.lines import JsonLines
from waltap.errors import RetryVerdict, SinkError, StopRequested
from waltap.ports.sink.refusal import FailStop
from waltap.ports.sink.sink import OutputClosed, Sink, SinkCapabilities, SinkContext
from waltap.ports.source.connector import PreflightCheck

log = logging.getLogger(__name__)

STDOUT: Final = "-"
TAIL_STEP: Final = 1 << 16
COPY_STEP: Final = 1 << 20
WRITE_STEP: Final = 1 << 19
"""One `write` of 2 MiB asks Linux for a huge page of its cache, up to ten times slower than halves."""
CACHED_BYTES: Final = 16 << 20
"""The last lines stay in the kernel's cache, for readers that follow the file."""
BEHIND_BYTES: Final = 1 << 18
"""Blocks from this size are written in a thread, which takes 50 µs to wake."""
BEHIND_RECORDS: Final = 512
"""The thread also joins the lines of so many records, whatever their size."""
STOP_POLL_S: Final = 0.1
STOP_WAIT_S: Final = 1.0
_CAN_ADVISE: Final = hasattr(os, "posix_fadvise")

LinesFileError = SinkError.define("LinesFileError", "WT-5001")
LinesFileTruncated = SinkError.define("LinesFileTruncated", "WT-5002", retry=RetryVerdict.RECONNECT)


class JsonLinesProperties(Properties):
    """The output file."""

    path: str = declare(
        "path",
        default=STDOUT,
        summary="File that lines are appended to; - is standard output.",
        examples=("events.jsonl",),
        path=(STDOUT,),
    )


class JsonLinesSink(Sink):
    """Appends one line per record. Life cycle: open, (write*, flush)*, close.

    Delivery: at least once. After a crash, records after the last flushed position may appear twice; none
    is missing and the order is kept. Single-threaded.

    If the file is renamed or deleted, `flush` notices it and opens a new file with the old name. A renamed
    file keeps its lines. The lines of a deleted file since the last flush are copied to the new one.
    """

    capabilities = SinkCapabilities(
        records=True, json_only=True, partitions=True, resumes_snapshots=True
    )

    def __init__(self, properties: JsonLinesProperties, context: SinkContext) -> None:
        self._path, self._stopping = properties.path, context.stopping
        self._may_write = context.may_write
        self._lines = JsonLines()
        self._fd = -1
        self._size: int | None = None
        """Where the lines end in a regular file, None for a pipe or a device."""
        self._durable_bytes = 0
        """Where they ended at the last flush."""
        self._accepted = Positions()
        self._where = "standard output" if self._path == STDOUT else self._path
        self._fail_stop = FailStop(self._where)
        self._writer: ThreadPoolExecutor | None = None
        self._behind: Future[None] | None = None
        """The block that the thread writes."""

    def check(self) -> list[PreflightCheck]:
        """Check whether the file can be written. Raises: LinesFileError."""
        if self._path != STDOUT:
            cause = refusal(Path(self._path), folder=False)
            if cause is not None:
                raise self._failure("cannot be written", cause) from cause
        return [PreflightCheck.ok("sink jsonl", self._path)]

    def open(self) -> None:
        """Open the file at the end of its last complete line.

        A named pipe is opened once it has a reader. Raises: LinesFileError, StopRequested.
        """
        self._fail_stop.reset()
        try:
            if self._path == STDOUT:
                self._fd = os.dup(1)
                return
            path = Path(self._path)
            if path.is_fifo():
                self._fd, self._size = self._pipe(path), None
                return
            self._fd, self._size = _open(path)
            self._durable_bytes = self._size or 0
        except OSError as cause:
            raise self._failure("cannot be opened", cause) from cause

    def write(self, batch: Batch) -> None:
        """Append the batch's records as one block.

        A thread writes large blocks while the engine makes the next one. Its errors are raised by the next
        `write` or `flush`, and end the instance. Raises: LinesFileError, OutputClosed, StopRequested.
        """
        if self._behind is None:  # else `_wait_for_write` raises the thread's own error
            self._fail_stop.check()
        records = batch.records or ()
        blocks: Iterable[bytes | memoryview] = self._lines.portions(records)
        large = isinstance(records, RecordBlock | MixedRecords) or len(records) >= BEHIND_RECORDS
        if not large:
            made = blocks = list(blocks)
            large = sum(map(len, made)) >= BEHIND_BYTES
        if self._behind is not None:
            self._wait_for_write()
        partition, position = batch.partition, batch.position  # the batch itself may go
        if self._size is not None and large:
            if self._writer is None:
                self._writer = ThreadPoolExecutor(1, "waltap-jsonl")
            self._behind = self._writer.submit(self._append, blocks, partition, position)
        else:
            self._append(blocks, partition, position)

    def _wait_for_write(self) -> None:
        """Wait for the thread's block. Raises: the thread's error."""
        behind, self._behind = self._behind, None
        if behind is not None:
            try:
                behind.result()
            except BaseException as error:
                self._fail_stop.fail(error)
                raise

    def _append(
        self, blocks: Iterable[bytes | memoryview], partition: str, position: Position
    ) -> None:
        begun = size = self._size
        try:
            for block in blocks:
                view = memoryview(block)
                if size is not None:
                    size += len(block)
                while view:
                    part = view[: WRITE_STEP if size is not None else self._room()]
                    self._may_write()
                    view = view[os.write(self._fd, part) :]
        except BrokenPipeError as cause:
            raise OutputClosed(
                f"{self._where} was closed by its reader", output=self._where
            ) from cause
        except OSError as cause:
            failure = self._failure("cannot be written", cause)
            self._cut_half_written(failure)
            raise failure from cause
        if size is not None and begun is not None:
            if size > begun:
                # The kernel starts writing now, so that `flush` waits less.
                self._release(begun, size)
                # Written lines leave its cache: their memory is for the next ones.
                if size > CACHED_BYTES:
                    self._release(max(0, begun - CACHED_BYTES), size - CACHED_BYTES)
            self._size = size
        self._accepted = self._accepted.advanced(partition, position)

    def _release(self, start: int, end: int) -> None:
        """Have the kernel write or release a file's range."""
        if _CAN_ADVISE:
            os.posix_fadvise(self._fd, start, end - start, os.POSIX_FADV_DONTNEED)

    def flush(self) -> Positions | None:
        """Make the written lines durable, in a file that still has its name.

        A pipe or terminal has the lines already. Raises: LinesFileError, LinesFileTruncated.
        """
        self._wait_for_write()
        with self._fail_stop:
            if self._size is not None and self._accepted:
                try:
                    os.fsync(self._fd)
                    self._follow_file()
                except OSError as cause:
                    raise self._failure("cannot be made durable", cause) from cause
                self._durable_bytes = self._size or 0
        return self._accepted or None

    def close(self) -> None:
        with contextlib.suppress(Exception):  # the pending block is not confirmed
            self._wait_for_write()
        if self._writer is not None:
            self._writer.shutdown()
            self._writer = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _pipe(self, path: Path) -> int:
        """Wait for a reader of a named pipe and open the pipe.

        Raises: StopRequested if the run must end before; OSError.
        """
        warned = False
        while True:
            try:
                # Opened for writing only: a descriptor that can read would hide the reader's end.
                fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as cause:
                # ENXIO: the pipe has no reader yet.
                if cause.errno != errno.ENXIO:
                    raise
            else:
                os.set_blocking(fd, True)
                return fd
            if not warned:
                log.info("%s waits for a reader", self._path)
                warned = True
            if self._stopping():
                raise StopRequested
            time.sleep(STOP_POLL_S)

    def _room(self) -> int:
        """Wait until a pipe or terminal accepts data; return how much.

        Raises: StopRequested if its reader has stopped and the run must end.
        """
        # Other processes may share the descriptor, so it must stay a blocking one.
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        stop_seen: float | None = None
        while not poll.poll(STOP_POLL_S * 1000):
            if self._stopping():
                stop_seen = stop_seen or time.monotonic()
                if time.monotonic() - stop_seen >= STOP_WAIT_S:
                    raise StopRequested
        return select.PIPE_BUF

    def _follow_file(self) -> None:
        """Open a new file if the open one was renamed.

        Call it after the fsync: a file that is deleted later contains durable lines only. Raises:
        LinesFileTruncated, OSError.
        """
        held = os.fstat(self._fd)
        if held.st_size < (self._size or 0):
            raise LinesFileTruncated(
                f"{self._path} was cut to {held.st_size} bytes while it was written: it had "
                f"{self._size}",
                path=self._path,
            )
        path = Path(self._path)
        with contextlib.suppress(FileNotFoundError):
            named = path.stat()
            if (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino):
                return
        old, written = self._fd, self._size or 0
        self._fd, self._size = _open(path)
        try:
            # The file has no name left: its lines since the last flush would be lost.
            if not held.st_nlink:
                copied = _copy(old, self._durable_bytes, written, self._fd)
                if self._size is not None:
                    self._size += copied
                    os.fsync(self._fd)
        finally:
            os.close(old)
        log.warning(
            "%s was %s: lines go to a new file of that name",
            self._path,
            "renamed" if held.st_nlink else "deleted; what was not confirmed is written again",
        )

    def _cut_half_written(self, failure: SinkError) -> None:
        """Remove a partly written block, so that a retry leaves complete lines."""
        if self._size is not None:
            try:
                os.ftruncate(self._fd, self._size)
            except OSError:  # the next open cuts the torn line instead
                self._fail_stop.fail(failure)

    def _failure(self, what: str, cause: OSError) -> SinkError:
        return LinesFileError(f"{self._where} {what}: {cause.strerror}", path=self._where)


def _open(path: Path) -> tuple[int, int | None]:
    """Open ``path`` for appending; return descriptor and size.

    The name is durable then. The size is None unless it is a regular file. Raises: OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return fd, None
        size = _cut_torn_line(fd)
        sync(path.parent)
    except BaseException:
        os.close(fd)
        raise
    return fd, size


def _copy(source: int, start: int, end: int, target: int) -> int:
    """Append a range of ``source`` to ``target``; return its size."""
    at = start
    while at < end:
        view = memoryview(os.pread(source, min(COPY_STEP, end - at), at))
        if not view:
            break
        at += len(view)
        while view:
            view = view[os.write(target, view) :]
    return at - start


def _cut_torn_line(fd: int) -> int:
    """Cut a crash's partial last line; return the size."""
    size = end = os.fstat(fd).st_size
    while end > 0:
        start = max(0, end - TAIL_STEP)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end != size:
        os.ftruncate(fd, end)
    return end
