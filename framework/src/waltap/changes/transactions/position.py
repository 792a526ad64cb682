"""Define positions in the stream of changes. Sans-IO."""

from collections.abc import Iterator, Mapping

import msgspec

SOLE = ""
"""Name of the partition of a source that has only one: a slot on a PostgreSQL server is one."""


class Position(msgspec.Struct, frozen=True, order=True, gc=False):
    """A point in the committed changes of one partition; totally ordered.

    One LSN alone never identifies an event: the rows of one COPY share theirs.
    """

    # End of the last completely delivered transaction: only this LSN may be confirmed.
    end_lsn: int
    # Commit LSN of the next transaction, if a part of it was delivered, else 0.
    commit_lsn: int = 0
    # Number of its delivered changes, in wire order and before any filter.
    index: int = 0

    def passed(self, lsn: int) -> "Position":
        """Return the position after WAL without changes up to ``lsn``."""
        if lsn <= self.end_lsn:
            return self
        # The rest of the transaction that it is within comes later.
        within = self.index and lsn <= self.commit_lsn
        return Position(lsn, self.commit_lsn, self.index) if within else Position(lsn)

    def __str__(self) -> str:
        text = lsn_text(self.end_lsn)
        return f"{text}+{lsn_text(self.commit_lsn)}#{self.index}" if self.index else text


START = Position(0)


class Positions(Mapping[str, Position]):
    """The position in each known partition of a source, by name; immutable.

    Positions of two partitions cannot be compared, so two of these objects cannot either: compare each
    partition.
    """

    __slots__ = ("_positions",)

    def __init__(self, positions: Mapping[str, Position] | None = None) -> None:
        self._positions = dict(positions or {})

    @classmethod
    def of(
        cls,
        given: "Positions | Position | None",
        partition: str = SOLE,
        reached: "Positions | None" = None,
    ) -> "Positions":
        """Return ``given`` as positions.

        A single position becomes the position of ``partition``; None becomes no position. With
        ``reached`` none may be beyond it. Raises: TypeError, ValueError.
        """
        if given is None:
            return cls()
        if isinstance(given, Positions):
            found = given
        elif isinstance(given, Position):
            found = cls({partition: given})
        else:
            raise TypeError(f"gave {type(given).__name__}, not Position or Positions or None")
        # Each flush passes here, so without further calls.
        for name, position in found._positions.items() if reached is not None else ():
            last = reached._positions.get(name) if reached is not None else None  # noqa: SLF001
            if last is None or position > last:
                raise ValueError(f"gave {position}, which no batch has reached (the last: {last})")
        return found

    @property
    def sole(self) -> Position:
        """Return the only partition's position. Raises: ValueError if others exist."""
        (position,) = self._positions.values()
        return position

    def advanced(self, partition: str, position: Position) -> "Positions":
        """Return a copy with another position in ``partition``."""
        # Each batch calls this: the constructor would copy the dict once more.
        advanced = Positions.__new__(Positions)
        advanced._positions = {**self._positions, partition: position}  # noqa: SLF001 - an object of this class
        return advanced

    def raised(self, partition: str, position: Position) -> "Positions":
        """Return a copy with the later position in ``partition``."""
        return self.advanced(partition, max(self._positions.get(partition, position), position))

    def passed(self, partition: str, lsn: int) -> "Positions":
        """Return a copy that has passed WAL without changes up to ``lsn``."""
        return self.advanced(partition, self._positions.get(partition, START).passed(lsn))

    def __getitem__(self, partition: str) -> Position:
        return self._positions[partition]

    def __iter__(self) -> Iterator[str]:
        return iter(self._positions)

    def __len__(self) -> int:
        return len(self._positions)

    def __hash__(self) -> int:
        return hash(frozenset(self._positions.items()))

    def __repr__(self) -> str:
        return f"Positions({self._positions!r})"

    def __str__(self) -> str:
        if list(self._positions) == [SOLE]:
            return str(self._positions[SOLE])
        return ", ".join(f"{name}: {position}" for name, position in self._positions.items())


def lsn_text(lsn: int) -> str:
    """Return ``lsn`` as PostgreSQL prints it: ``16/B374D848``."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """Return the LSN of its text. Raises: ValueError for any other text."""
    high, _, low = text.strip().partition("/")
    # int() also accepts signs, underscores and digits of other scripts.
    if len(high) > 8 or len(low) > 8 or not (high + low).isascii() or not (high + low).isalnum():
        raise ValueError(f"not an LSN: {text!r}")
    return (int(high, 16) << 32) | int(low, 16)


class TableChunks(msgspec.Struct, frozen=True, kw_only=True):
    """Record the progress in one table whose reading has begun.

    Some of its rows may be at the destination.
    """

    # Text of the connector: the division into chunks, and the snapshot of the first reading.
    plan: str = ""
    count: int = 1
    # Indexes of the durable chunks.
    done: tuple[int, ...] = ()
    # The whole table is durable.
    complete: bool = False

    def ended(self, chunk: int, *, complete: bool) -> "TableChunks":
        """Return the progress after the end of ``chunk`` is durable."""
        if complete:
            return TableChunks(count=self.count, complete=True)
        known = 0 <= chunk < self.count and chunk not in self.done
        done = tuple(sorted((*self.done, chunk))) if known else self.done
        return msgspec.structs.replace(self, done=done)


class SnapshotProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Record a snapshot that has begun and not ended."""

    kind: str
    # The stream begins here after the snapshot.
    lsn: int
    # Identifier from `TableListingSource.captured_tables` → progress, for tables whose reading has
    # begun. If it is empty, a start takes a new snapshot.
    tables: dict[str, TableChunks] = {}
