"""JSON lines: one object per record, ``{"topic", "key", "value", "headers"}``, to a file or stdout.

Key and value stand in the line as the JSON they were rendered to, not as strings; ``value`` is null
for a tombstone, ``key`` for a record without one; ``headers`` is a list of ``{"key", "value"}``.
"""

import contextlib
import errno
import logging
import os
import select
import stat
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

from waltap.config.property import Properties, declare
from waltap.errors import RetryVerdict, SinkError
from waltap.files.place import refusal
from waltap.format.record_block import RecordBlock
from waltap.json.lines import JsonLines
from waltap.offsets.durable_file import sync
from waltap.sink.fail_stop import FailStop
from waltap.sink.sink import ReaderGone, Sink, SinkCapabilities, SinkContext
from waltap.source.connector import PreflightCheck, StopRequested
from waltap.source.position import Position, Positions
from waltap.transactions.transaction import Batch

__all__ = ["JsonLinesProperties", "JsonLinesSink", "LinesFileCut", "LinesFileError"]

log = logging.getLogger(__name__)

STDOUT: Final = "-"
TAIL_STEP: Final = 1 << 16
COPY_STEP: Final = 1 << 20
BEHIND_BYTES: Final = 1 << 18
"""From this size on a block is worth a thread, which takes 50 µs to start."""
STOP_LOOK_S: Final = 0.1
STOP_GRACE_S: Final = 1.0
_CAN_ADVISE: Final = hasattr(os, "posix_fadvise")


class LinesFileError(SinkError):
    """The file of JSON lines cannot be opened, written or made durable."""

    code = "WT-5001"
    remedy = (
        "Check that {path} can be written and that its disk has room, then start again: what was "
        "not confirmed is written again, and a torn last line is cut off."
    )


class LinesFileCut(SinkError):
    """The file became shorter while it was written: lines that nobody has confirmed may be gone."""

    code = "WT-5002"
    retry = RetryVerdict.RECONNECT
    remedy = (
        "What was not confirmed is written again by itself. Rotate {path} by renaming it (logrotate: "
        "create, not copytruncate): lines that were confirmed before it was cut are where they were "
        "copied to, or nowhere."
    )


class JsonLinesProperties(Properties):
    """Where the lines go."""

    path: str = declare(
        "path",
        default=STDOUT,
        summary="File that lines are appended to; - is standard output.",
        examples=("events.jsonl",),
        path=(STDOUT,),
    )


class JsonLinesSink(Sink):
    """Appends one line per record. Life cycle: open, (write*, flush)*, close.

    Delivery: at least once. After a crash, records past the last flushed position may appear twice;
    none is missing and none is out of order. Single-threaded.

    The file may be renamed or deleted under the sink: `flush` notices and goes on in a new one under
    the old name. What a deleted file held since the last flush is copied there first; what a renamed one
    holds stays in it.
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
        self._promised = 0
        """Where they ended at the last flush."""
        self._accepted = Positions()
        self._where = "standard output" if self._path == STDOUT else self._path
        self._fail_stop = FailStop(self._where)
        self._behind: _BackgroundCall | None = None
        """The block that a thread writes."""

    def check(self) -> list[PreflightCheck]:
        """Look whether the file can be written. Raises: LinesFileError."""
        if self._path != STDOUT:
            cause = refusal(Path(self._path), folder=False)
            if cause is not None:
                raise self._failure("cannot be written", cause) from cause
        return [PreflightCheck(name="sink jsonl", verdict="ok", found=self._path)]

    def open(self) -> None:
        """Open the file at the end of its last whole line, a named pipe once it has a reader.

        Raises: LinesFileError, StopRequested.
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
            self._promised = self._size or 0
        except OSError as cause:
            raise self._failure("cannot be opened", cause) from cause

    def write(self, batch: Batch) -> None:
        """Append the batch's records as one block. Raises: LinesFileError, ReaderGone, StopRequested.

        Large blocks go to a file in a thread, while the next one is made: the `write` or `flush` after it
        raises what became of it, and the instance is then at its end.
        """
        if self._behind is None:  # else it says itself how it failed
            self._fail_stop.check()
        records = batch.records or ()
        blocks: Iterable[bytes | memoryview] = self._lines.portions(records)
        large = isinstance(records, RecordBlock)
        if not large:
            made = blocks = list(blocks)
            large = sum(map(len, made)) >= BEHIND_BYTES
        self._settle()
        partition, position = batch.partition, batch.position  # the batch itself may go
        if self._size is not None and large:
            self._behind = _BackgroundCall(partial(self._append, blocks, partition, position))
        else:
            self._append(blocks, partition, position)

    def _settle(self) -> None:
        """Wait for the block that a thread writes. Raises: what writing it raised."""
        behind, self._behind = self._behind, None
        if behind is not None:
            try:
                behind.end()
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
                    part = view if size is not None else view[: self._room()]
                    self._may_write()
                    view = view[os.write(self._fd, part) :]
        except BrokenPipeError as cause:
            raise ReaderGone(
                f"{self._where} was closed by its reader", output=self._where
            ) from cause
        except OSError as cause:
            failure = self._failure("cannot be written", cause)
            self._cut_half_written(failure)
            raise failure from cause
        if size is not None and begun is not None:
            if _CAN_ADVISE and size > begun:
                # the kernel starts writing now, so that `flush` has little left to wait for
                os.posix_fadvise(self._fd, begun, size - begun, os.POSIX_FADV_DONTNEED)
            self._size = size
        self._accepted = self._accepted.moved(partition, position)

    def flush(self) -> Positions | None:
        """Make what was written durable (a pipe or terminal has taken it already), in a file that is
        still there. Raises: LinesFileError, LinesFileCut."""
        self._settle()
        with self._fail_stop:
            if self._size is not None and self._accepted:
                try:
                    os.fsync(self._fd)
                    self._follow_file()
                except OSError as cause:
                    raise self._failure("cannot be made durable", cause) from cause
                self._promised = self._size or 0
        return self._accepted or None

    def close(self) -> None:
        """Close the file; may be called twice."""
        with contextlib.suppress(Exception):  # nobody was promised what is still being written
            self._settle()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _pipe(self, path: Path) -> int:
        """Open a named pipe for writing only, so that its reader's end is noticed; wait for a reader.
        Raises: StopRequested when there is none, and the run is to end; OSError."""
        told = False
        while True:
            try:
                fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as cause:
                if cause.errno != errno.ENXIO:
                    raise
            else:
                os.set_blocking(fd, True)
                return fd
            if not told:
                log.info("%s waits for a reader", self._path)
                told = True
            if self._stopping():
                raise StopRequested
            time.sleep(STOP_LOOK_S)

    def _room(self) -> int:
        """Wait until a pipe or terminal takes something; return how much it takes without blocking.

        The descriptor may be shared with other processes, so it stays a blocking one.
        Raises: StopRequested when its reader has stopped, and the run is to end.
        """
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        stop_seen: float | None = None
        while not poll.poll(STOP_LOOK_S * 1000):
            if self._stopping():
                stop_seen = stop_seen or time.monotonic()
                if time.monotonic() - stop_seen >= STOP_GRACE_S:
                    raise StopRequested
        return select.PIPE_BUF

    def _follow_file(self) -> None:
        """See that the name still leads to the open file, which holds what was written; go on in a new
        file where it does not. After the fsync, so that whoever deletes later deletes what was promised.
        Raises: LinesFileCut, OSError."""
        held = os.fstat(self._fd)
        if held.st_size < (self._size or 0):
            raise LinesFileCut(
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
            if not held.st_nlink:
                copied = _copy(old, self._promised, written, self._fd)
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

    def _cut_half_written(self, failure: LinesFileError) -> None:
        """Take back a block of which a part was written, so that a retry leaves whole lines."""
        if self._size is not None:
            try:
                os.ftruncate(self._fd, self._size)
            except OSError:  # the next open cuts the torn line instead
                self._fail_stop.fail(failure)

    def _failure(self, what: str, cause: OSError) -> LinesFileError:
        return LinesFileError(f"{self._where} {what}: {cause.strerror}", path=self._where)


class _BackgroundCall:
    """One call in a thread of its own; `end` waits for it, and raises what it raised."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="waltap-jsonl", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001 - raised again by `end`
            self._error = error
        del self._call  # it holds the block

    def end(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error


def _open(path: Path) -> tuple[int, int | None]:
    """Open ``path`` for appending, its name durable; return descriptor and size (None: no regular
    file). Raises: OSError."""
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
    """Append the bytes from ``start`` to ``end`` of ``source`` to ``target``; return how many."""
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
    """Cut what follows the last newline (a crash can leave half a line); return the size left."""
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
