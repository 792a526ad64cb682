"""Define the interface of a lake.

A commit of a table has both its rows and the position behind them.
"""

import abc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import msgspec

from waltap.base.import_rules import pa
from waltap.changes.transactions.position import Position
from waltap.errors import SinkError
from waltap_lake.errors import LakeTableUnfit
from waltap_sinks.changelog.reader import plain_type

# Encode the progress of a pipeline in a lake.
#
# The lake's table of positions stores it. Sans-IO.


class LakeTableVersion(msgspec.Struct, frozen=True, array_like=True):
    """Identify one version of a table."""

    # The UUID that the format gives a new table.
    identity: str
    # Delta's version or Iceberg's last sequence number; both only grow.
    number: int
    # Iceberg's current snapshot.
    snapshot: int = 0


class WrittenTable(msgspec.Struct, frozen=True, array_like=True):
    """Describe a table that the pipeline has committed to."""

    # The table of the lake.
    space: str
    name: str
    # The relation whose rows came last.
    schema: str
    table: str
    oid: int
    # The table's version after the last commit.
    version: LakeTableVersion


class LakeOffset(msgspec.Struct, frozen=True):
    """Hold the progress of one pipeline in all its tables."""

    # Grows with each new history. Positions of tables from another epoch have no meaning.
    epoch: int = 0
    # The time of `LakeSink.open` in ns. It grows; only the instance that opened last may commit.
    generation: int = 0
    # The position that every table has. None before the first commit and during a snapshot.
    position: Position | None = None
    # LSNs of snapshots that began and did not end. The next snapshot deletes their rows.
    unfinished: tuple[int, ...] = ()
    # Tables with commits of this epoch.
    tables: tuple[WrittenTable, ...] = ()

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def decode(cls, text: str) -> "LakeOffset":
        """Return the offset in JSON text. Raises: msgspec.DecodeError."""
        return msgspec.json.decode(text, type=cls)


# Verbs of messages about a table that is missing, or that another table has replaced.
GONE: Final = "no longer exists"
RECREATED: Final = "was created again"
# How often an offset is stored while other pipelines store theirs in the same table.
KEEP_TRIES: Final = 20
KEEP_BUSY: Final = "has been changed by other pipelines at each try"


class LakeTableName(NamedTuple):
    """Name a table of the lake."""

    # The folder or namespace.
    space: str
    name: str

    def __str__(self) -> str:
        return f"{self.space}.{self.name}"


class LakeTable(abc.ABC):
    """Read and write one table of changes. Every method raises SinkError."""

    @abc.abstractmethod
    def position(self, epoch: int) -> Position | None:
        """Return the position of this pipeline's last commit in ``epoch``."""

    @abc.abstractmethod
    def version(self) -> LakeTableVersion:
        """Return the version that was read or committed last."""

    @abc.abstractmethod
    def lost(self, known: LakeTableVersion) -> str | None:
        """Read the table again and return the reason if it lost a commit.

        It must have every commit of ``known``, and every later one of this pipeline. Later commits of
        other writers are no loss. The result is None if nothing is lost.
        """

    @abc.abstractmethod
    def append(self, rows: "pa.Table", epoch: int, position: Position) -> None:
        """Commit ``rows`` and ``position`` on top of the version that `lost` read.

        New columns are added to the table. Raises LakeFenced if another instance has committed since
        `position`.
        """

    @abc.abstractmethod
    def take_out(self, condition: str) -> None:
        """Delete the rows of the SQL ``condition``."""


class LakeConnection(abc.ABC):
    """Open tables, and store the offset. Every method raises SinkError."""

    # The lake's name in messages.
    location: str
    # The lake has times of day.
    times = True

    @abc.abstractmethod
    def check(self) -> None:
        """Check that `open` will succeed, without a change."""

    @abc.abstractmethod
    def open(self) -> LakeOffset | None:
        """Connect and return this pipeline's offset.

        A missing table of positions is created.
        """

    @abc.abstractmethod
    def keep(self, offset: LakeOffset) -> None:
        """Commit ``offset``.

        Raises: LakeFenced if another instance has committed an offset since.
        """

    @abc.abstractmethod
    def table(self, name: LakeTableName, schema: "pa.Schema") -> LakeTable:
        """Return a table. A missing one is created with the columns of ``schema``."""

    @abc.abstractmethod
    def existing(self, name: LakeTableName) -> LakeTable | None:
        """Return a table, None if it is missing."""

    @abc.abstractmethod
    def takes(self, kind: "pa.DataType", other: "pa.DataType") -> bool:
        """Return whether a column of the type ``kind`` takes values of ``other``."""

    def fitted(self, rows: "pa.Table") -> "pa.Table":
        """Return ``rows`` cast to the lake's types."""
        kinds = [field.with_type(plain_type(field.type, times=self.times)) for field in rows.schema]
        return rows.cast(pa.schema(kinds))

    @contextmanager
    def failing(self, table: LakeTableName | None = None) -> Iterator[None]:
        """Translate exceptions within the block."""
        try:
            yield
        except SinkError:
            raise
        except Exception as error:  # libraries, file systems and catalogues also raise plain ones
            raise self.failure(error, table) from error

    @abc.abstractmethod
    def failure(self, error: Exception, table: LakeTableName | None = None) -> SinkError:
        """Return the error for an exception about the lake or a table."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release all resources. May be called twice."""

    def require_takes(self, name: LakeTableName, schema: "pa.Schema", rows: "pa.Schema") -> None:
        """Check that the columns of ``schema`` take the columns of ``rows``.

        Raises: LakeTableUnfit.
        """
        for field in rows:
            if field.name not in schema.names:
                continue
            kind = schema.field(field.name).type
            if not self.takes(kind, field.type):
                text = f"{name}: column {field.name} is {kind}, the source has {field.type} now"
                raise LakeTableUnfit(text, table=name)
