"""Pass a snapshot's chunks from the engine to Spark.

They use the standard input of the process, and reach tasks as a broadcast. Chunks contain the connection
to the source with its password, which must be in no plan, argument, log or file. Knows no Spark.
"""

import logging
import os
import pickle
import select
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from waltap.changes.capture.capture import CaptureRules
from waltap.changes.capture.properties import CaptureProperties
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.replica_identity import ReplicaIdentity
from waltap.changes.mapping.type_mapping import TypeOptions
from waltap.errors import WaltapError
from waltap.ports.sink.sink import SinkContext
from waltap.ports.snapshot.chunk_source import SnapshotChunk

if TYPE_CHECKING:
    from waltap.changes.mapping.type_mapping import TypeMapper


log = logging.getLogger(__name__)

# Bytes of a message's length, before the message.
HEAD: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTerms:
    """Facts for decoding one table's rows in any process."""

    described: Relation
    identity: ReplicaIdentity | None
    capture: CaptureProperties | None
    options: TypeOptions

    def context(self, types: "TypeMapper") -> SinkContext:
        """Return a context for this table alone."""
        identity = self.identity
        return SinkContext(
            pipeline="",
            state_dir=Path(),
            types=types,
            describe=lambda _relation: self.described,
            identity=None if identity is None else lambda _relation: identity,
            capture=None if self.capture is None else CaptureRules(self.capture),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedSplits:
    """The chunks of one table, pickled with their `RowTerms`."""

    count: int
    pickled: bytes

    @classmethod
    def of(cls, chunks: Sequence[SnapshotChunk], context: SinkContext) -> "AssignedSplits":
        """Return the ``chunks`` of one table as a message."""
        if context.types is None:
            raise WaltapError("the Spark sink was made without a type mapper")
        described = context.events.describe(chunks[0].relation)
        terms = RowTerms(
            described=described,
            identity=None if context.identity is None else context.identity(described),
            capture=None if context.capture is None else context.capture.properties,
            options=context.types.options,
        )
        return cls(count=len(chunks), pickled=pickle.dumps((terms, list(chunks))))


# Chunks by the table's number in the source (OID).
TableSplits = Mapping[int, AssignedSplits]


def splits_of(chunks: Iterable[SnapshotChunk], context: SinkContext) -> TableSplits:
    """Return ``chunks`` by table; two names can read the same."""
    tables: dict[int, list[SnapshotChunk]] = {}
    for chunk in chunks:
        tables.setdefault(chunk.relation.oid, []).append(chunk)
    return {oid: AssignedSplits.of(each, context) for oid, each in tables.items()}


# The name in `NO_MORE`; no chunks have it.
NO_NAME: Final = ""


def packed(name: str, tables: TableSplits) -> bytes:
    """Return a message for `DriverInput`."""
    data = pickle.dumps((name, dict(tables)))
    return len(data).to_bytes(HEAD, "big") + data


# The message of an engine without a snapshot for Spark, or after it.
NO_MORE: Final = packed(NO_NAME, {})


class DriverInput:
    """Reads the engine's messages from standard input until its end.

    A thread reads, so that the engine never waits for a busy driver.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._last: tuple[str | None, TableSplits] = (None, {})
        self._gone = threading.Event()
        # A daemon: it waits for the engine, and must not keep a finished driver alive.
        threading.Thread(target=self._read, name="inbox", daemon=True).start()

    def gone(self) -> bool:
        """Return whether the engine closed standard input or died."""
        return self._gone.is_set()

    def of(self, name: str) -> TableSplits | None:
        """Return the chunks of ``name``, None before they arrive.

        Raises: LookupError if none will arrive (`NO_MORE`).
        """
        last, tables = self._last
        if name == last:
            return tables
        if last == NO_NAME:
            raise LookupError(name)
        return None

    def _read(self) -> None:
        try:
            while (size := self._exactly(HEAD)) is not None:
                data = self._exactly(int.from_bytes(size, "big"))
                if data is None:
                    return
                self._last = pickle.loads(data)  # noqa: S301 - what started us wrote it
        except Exception:
            log.exception("what the engine hands over cannot be read")
        finally:
            self._gone.set()  # a driver without its engine must end

    def _exactly(self, count: int) -> bytes | None:
        found = bytearray()
        while len(found) < count:
            select.select([self._file], [], [])
            part = os.read(self._file.fileno(), min(count - len(found), 1 << 20))
            if not part:
                return None
            found += part
        return bytes(found)
