"""Warn of values that become null, by table and column."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import Tuple
from waltap.changes.events import EventPlan
from waltap.changes.transactions.transaction import Heartbeat, SnapshotRows, TransactionPart
from waltap.encoders.json.codec import MISFITS, column_codec
from waltap.errors import DecodeError

Parts = Iterable[TransactionPart | SnapshotRows | Heartbeat]


class NullNotice:
    """Call ``warn`` once for each table, column and reason.

    Equal columns of several tables share one conversion, which knows only the column's name and
    reports it to `note`. At the end of the batch `report_all` finds the tables: it converts the columns of
    that name once more, except those already reported. So other rows have no extra cost.
    """

    __slots__ = ("_mode", "_reported", "_warn", "noted")

    def __init__(self, warn: Callable[[str], None], mode: str) -> None:
        """Keep ``warn``, and ``event.converting.failure.handling.mode`` for `unfit`."""
        self._warn, self._mode = warn, mode
        self._reported: set[tuple[str, str, str]] = set()
        self.noted: set[tuple[str, str]] = set()

    def note(self, column: str, reason: str) -> None:
        self.noted.add((column, reason))

    def unfit(
        self, encoder: str, relation: Relation, index: int, cause: Exception, *, key: bool
    ) -> None:
        """Report a value that does not fit its column.

        A ``key`` column has an error in any mode: rows with null in their keys would be one row.
        Raises: DecodeError.
        """
        column = relation.columns[index]
        kind = column.data_type.name if column.data_type else "its type"
        if key or self._mode == "fail":
            raise DecodeError(
                encoder,
                expected=f"a value of {kind} in column {column.name} of {relation.name}",
                found=f"another ({type(cause).__name__})",
            ) from cause
        if self._mode == "warn":
            self.report(relation.name, column.name, f"not a value of {kind}")

    def report(self, table: str, column: str, reason: str) -> None:
        """Warn once; ``table`` is "" when it is unknown."""
        if (table, column, reason) not in self._reported:
            self._reported.add((table, column, reason))
            of = f" of {table}" if table else ""
            self._warn(f"column {column}{of}: {reason}; null is written for such values")

    def report_all(self, parts: Parts, codec_of: Callable[[Relation], Any]) -> None:
        """Warn of the nulls of the rendered ``parts``.

        ``codec_of`` returns what was compiled from a relation's plan, or None.
        """
        # The conversions below call `note` again, so it starts empty.
        noted, self.noted = self.noted, set()
        explained = set()
        for relation, rows in _tuples(parts).items():
            codec = codec_of(relation)
            if codec is not None:
                explained |= self._of_table(codec.plan, rows, noted)
        # A column that is only part of the key is in no row's plan.
        for column, reason in sorted(noted - explained):
            self.report("", column, reason)
        self.noted.clear()

    def _of_table(
        self, plan: EventPlan, rows: list[Tuple], noted: set[tuple[str, str]]
    ) -> set[tuple[str, str]]:
        """Warn of the nulls of one table.

        Returns its columns and reasons, also those already reported.
        """
        known = {each for each in noted if (plan.name, *each) in self._reported}
        names = {name for name, _ in noted - known}
        self.noted.clear()
        for column in plan.columns:
            if column.column.name not in names or column.mapping is None:
                continue
            codec = column_codec(column.index, column.field, column.mapping, column.transform)
            for row in rows:
                # Malformed text is reported where the row is rendered.
                with suppress(*MISFITS):
                    value = row[column.index]
                    convert = codec.text if type(value) is str else codec.other
                    if convert is not None:
                        convert(value)
        for name, reason in sorted(self.noted):
            self.report(plan.name, name, reason)
        return known | self.noted


def _tuples(parts: Parts) -> dict[Relation, list[Tuple]]:
    found: dict[Relation, list[Tuple]] = {}
    for part in parts:
        if isinstance(part, SnapshotRows):
            found.setdefault(part.relation, []).extend(part.rows)
        elif isinstance(part, TransactionPart):
            for change in part.changes:
                relation = getattr(change, "relation", None)
                if relation is not None:
                    images = getattr(change, "new", ()), getattr(change, "old", ())
                    found.setdefault(relation, []).extend(image for image in images if image)
    return found
