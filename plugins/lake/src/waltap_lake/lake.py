"""What the sink needs of a lake: tables that take columns and a position in one commit."""

import abc
from typing import TYPE_CHECKING, Final, NamedTuple

from waltap.source.position import Position
from waltap_lake.lake_offset import LakeOffset, LakeTableVersion

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ANEW", "GONE", "LakeConnection", "LakeTable", "LakeTableName", "fitting"]

GONE: Final = "is not there any more"
ANEW: Final = "was made anew"


class LakeTableName(NamedTuple):
    """A table of the lake; ``space`` is its folder or namespace."""

    space: str
    name: str

    def __str__(self) -> str:
        return f"{self.space}.{self.name}"


class LakeTable(abc.ABC):
    """One table of changes. Every method raises SinkError."""

    @abc.abstractmethod
    def position(self, epoch: int) -> Position | None:
        """Return the position that came with the last commit of this pipeline in ``epoch``."""

    @abc.abstractmethod
    def version(self) -> LakeTableVersion:
        """Return which version was read or committed last."""

    @abc.abstractmethod
    def lost(self, known: LakeTableVersion) -> str | None:
        """Read the table's metadata again; return what has become of the table where it lacks a commit
        that ``known`` has, or a later one of this pipeline. What others commit on top is no loss."""

    @abc.abstractmethod
    def append(self, rows: "pa.Table", epoch: int, position: Position) -> None:
        """Commit ``rows`` and the position behind them, on top of what `lost` has read; columns that are
        new are added. Refuses where another instance has committed since `position`."""

    @abc.abstractmethod
    def take_out(self, condition: str) -> None:
        """Delete the rows that ``condition`` names, in SQL."""


class LakeConnection(abc.ABC):
    """Tables, and the place of the mark. Every method raises SinkError."""

    place: str

    @abc.abstractmethod
    def check(self) -> None:
        """Look whether `open` will succeed; changes nothing."""

    @abc.abstractmethod
    def open(self) -> LakeOffset | None:
        """Connect, make the table of positions where it is missing, and return this pipeline's mark."""

    @abc.abstractmethod
    def keep(self, mark: LakeOffset) -> None:
        """Commit ``mark``; refuses where another instance has kept one since."""

    @abc.abstractmethod
    def table(self, name: LakeTableName, schema: "pa.Schema") -> LakeTable:
        """Return a table; one that is missing is made, with the columns of ``schema``."""

    @abc.abstractmethod
    def existing(self, name: LakeTableName) -> LakeTable | None:
        """Return a table; None where there is none."""

    @abc.abstractmethod
    def fitted(self, rows: "pa.Table") -> "pa.Table":
        """Return ``rows`` with types that the lake has."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go; may be called twice."""


def fitting(kind: "pa.DataType", *, times: bool) -> "pa.DataType":
    """Return the type that values of ``kind`` are kept as: text for decimals of more than 38 digits and,
    without ``times``, for times of day, within lists, structs and maps too."""
    import pyarrow as pa

    if pa.types.is_decimal256(kind) or (pa.types.is_time(kind) and not times):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(fitting(kind.value_type, times=times))
    if pa.types.is_map(kind):
        return pa.map_(fitting(kind.key_type, times=times), fitting(kind.item_type, times=times))
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(fitting(f.type, times=times)) for f in kind.fields])
    return kind
