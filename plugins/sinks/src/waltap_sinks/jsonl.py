"""JSON lines: one object per record, ``{"topic", "key", "value", "headers"}``, to a file or stdout.

Key and value stand in the line as the JSON they were rendered to, not as strings; ``value`` is null
for a tombstone, ``key`` for a record without one; ``headers`` is a list of ``{"key", "value"}``.
"""

import os
import stat
from pathlib import Path
from typing import Final

from waltap.config.property import Properties, declare
from waltap.errors import SinkError
from waltap.events.transaction import Batch
from waltap.render.json_lines import JsonLines
from waltap.sink.sink import Sink, SinkCapabilities, SinkContext
from waltap.source.position import Position

__all__ = ["JsonLinesProperties", "JsonLinesSink", "LinesFileError"]

STDOUT: Final = "-"
TAIL_STEP: Final = 1 << 16
_CAN_ADVISE: Final = hasattr(os, "posix_fadvise")


class LinesFileError(SinkError):
    """The file of JSON lines cannot be opened, written or made durable."""

    code = "WT-5001"
    remedy = (
        "Check that {path} can be written and that its disk has room, then start again: what was "
        "not confirmed is written again, and a torn last line is cut off."
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
    """

    capabilities = SinkCapabilities(records=True, exactly_once=False)

    def __init__(self, properties: JsonLinesProperties, context: SinkContext) -> None:
        self._path = properties.path
        self._lines = JsonLines()
        self._fd = -1
        self._size: int | None = None
        self._accepted: Position | None = None

    def open(self) -> Position | None:
        """Open the file at the end of its last whole line. Raises: LinesFileError."""
        try:
            if self._path == STDOUT:
                self._fd = os.dup(1)
                return None
            path = Path(self._path)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            if stat.S_ISREG(os.fstat(self._fd).st_mode):
                self._size = _cut_torn_line(self._fd)
        except OSError as cause:
            raise self._failure("cannot be opened", cause) from cause
        return None

    def write(self, batch: Batch) -> None:
        """Append the batch's records as one block. Raises: LinesFileError."""
        block = self._lines.lines(batch.records or ())
        try:
            view = memoryview(block)
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as cause:
            self._cut_half_written()
            raise self._failure("cannot be written", cause) from cause
        if self._size is not None:
            if _CAN_ADVISE and block:
                # the kernel starts writing now, so that `flush` has little left to wait for
                os.posix_fadvise(self._fd, self._size, len(block), os.POSIX_FADV_DONTNEED)
            self._size += len(block)
        self._accepted = batch.position

    def flush(self) -> Position | None:
        """Make what was written durable (a pipe or terminal has taken it already)."""
        if self._size is not None and self._accepted is not None:
            try:
                os.fsync(self._fd)
            except OSError as cause:
                raise self._failure("cannot be made durable", cause) from cause
        return self._accepted

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _cut_half_written(self) -> None:
        """Take back a block of which a part was written, so that a retry leaves whole lines."""
        if self._size is not None:
            try:
                os.ftruncate(self._fd, self._size)
            except OSError:  # the next open cuts the torn line instead
                self._size = None

    def _failure(self, what: str, cause: OSError) -> LinesFileError:
        where = "standard output" if self._path == STDOUT else self._path
        return LinesFileError(f"{where} {what}: {cause.strerror}", path=where)


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
