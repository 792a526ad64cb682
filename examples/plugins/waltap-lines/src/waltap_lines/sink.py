"""A sink that appends one line of JSON per record to a file. Replace the file by your destination.

The rules that the tests check: only what `flush` returns is promised; what was promised is there
after a kill at any moment; order is kept; only SinkError comes out.
"""

import os
from pathlib import Path

import orjson

from waltap.config import Properties, declare
from waltap.errors import SinkError
from waltap.changes.transactions import Batch
from waltap.encoders.format import Record
from waltap.ports.sink import Sink, SinkCapabilities, SinkContext
from waltap.ports.source import Position


class LinesRefused(SinkError):
    """The destination did not take what was written."""

    code = "LINES-5001"
    remedy = "Make {path} writable and start again: nothing that was promised is lost."


class LinesProperties(Properties):
    """Where records go."""

    path: Path = declare("path", summary="File that records are appended to.")


class LinesSink(Sink):
    """Appends lines. At least once: after a crash, what was not promised may be there twice."""

    capabilities = SinkCapabilities(json_only=True)

    def __init__(self, properties: LinesProperties, context: SinkContext) -> None:
        self._path = properties.path
        self._file = -1
        self._lines: list[bytes] = []
        self._accepted: Position | None = None
        self._failed = False

    def open(self) -> Position | None:
        """Open the file, and cut what a crash left of a line."""
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            data = self._path.read_bytes()
            os.ftruncate(self._file, data.rfind(b"\n") + 1)
        except OSError as cause:
            raise LinesRefused(f"cannot open: {cause.strerror}", path=self._path) from cause
        return None  # a sink that keeps the position with its data returns it here

    def write(self, batch: Batch) -> None:
        """Take ownership of the batch; nothing is promised yet."""
        self._refuse()
        self._lines += [_line(record) for record in batch.records or ()]
        self._accepted = batch.position

    def flush(self) -> Position | None:
        """Make everything accepted durable, then promise it."""
        self._refuse()
        data = memoryview(b"".join(self._lines))
        try:
            while data:
                data = data[os.write(self._file, data) :]
            os.fsync(self._file)
        except OSError as cause:
            self._failed = True
            raise LinesRefused(f"cannot write: {cause.strerror}", path=self._path) from cause
        self._lines.clear()
        return self._accepted

    def _refuse(self) -> None:
        """The system tells once of writes that are lost: a second flush would promise them."""
        if self._failed:
            raise LinesRefused("a flush failed before", path=self._path)

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _line(record: Record) -> bytes:
    texts = [None if part is None else part.decode() for part in (record.key, record.value)]
    headers = [[name, value.decode()] for name, value in record.headers]
    return orjson.dumps([record.topic, *texts, headers]) + b"\n"
