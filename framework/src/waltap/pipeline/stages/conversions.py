"""Choose and apply the converters of columns.

The stage comes after every transform of batches, which see the values of the server, and before the
format. `waltap.changes.mapping.conversion` has the contract.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from waltap.base.import_rules import pa
from waltap.changes.capture.capture import CaptureRules
from waltap.changes.decode.message import OldTuple
from waltap.changes.decode.relation import Column, PerRelation, Relation
from waltap.changes.decode.row_block import RowBlock, texts_of
from waltap.changes.decode.tuple_image import MissingValue, Tuple, Value
from waltap.changes.mapping.conversion import ColumnConversion, ColumnConverter, carried
from waltap.changes.transactions.position import lsn_text
from waltap.changes.transactions.transaction import Batch, SnapshotRows, TransactionPart
from waltap.errors import RecordError, RetryVerdict
from waltap.ports.transforms.rewrite import IMAGES, rewritten_changes

log = logging.getLogger(__name__)

# The batch was not delivered and the position not moved.
ConverterFailed = RecordError.define(
    "ConverterFailed", "WT-3207", retry=RetryVerdict.NEVER, of_conversion=True, of_transform=False
)

_Chosen = tuple[str, ColumnConversion]
"""The label of a converter, and its conversion of a column."""


@dataclass(frozen=True, slots=True)
class _ConvertedColumn:
    """Hold a converted column, its index in tuples, and its converter."""

    index: int
    column: Column
    label: str
    conversion: ColumnConversion


class ColumnConversions:
    """Ask the converters once per column of a relation version.

    The first converter that answers has the column.
    """

    def __init__(
        self,
        converters: Sequence[tuple[str, ColumnConverter]],
        capture: CaptureRules,
        describe: Callable[[Relation], Relation],
    ) -> None:
        self.converters = tuple(converters)
        self._capture, self._describe = capture, describe
        self._mode = capture.types.event_converting_failure_handling_mode
        self._answers = PerRelation[dict[Column, _Chosen | None]](lambda _relation: {})
        self._converted_columns = PerRelation(self._chosen)
        self._reported: set[tuple[str, str]] = set()

    def of(self, relation: Relation, column: Column) -> ColumnConversion | None:
        """Return the conversion of a column, None without one.

        The relation is a described one. Raises: ConverterFailed.
        """
        if not self.converters:
            return None
        named = next((each for each in relation.columns if each.name == column.name), column)
        chosen = self._asked(relation, named)
        if chosen is None:
            return None
        _, conversion = chosen
        if column.nullable is True and named.nullable is False and not conversion.schema.optional:
            schema = msgspec.structs.replace(conversion.schema, optional=True)
            return ColumnConversion(schema=schema, values=conversion.values)
        return conversion

    def _asked(self, relation: Relation, column: Column) -> _Chosen | None:
        answers = self._answers.of(relation)
        if column not in answers:
            answers[column] = self._ask(relation, column)
        return answers[column]

    def _ask(self, relation: Relation, column: Column) -> _Chosen | None:
        for label, converter in self.converters:
            try:
                answer = converter(relation, column)
            except Exception as cause:
                what = f"raised {type(cause).__name__} when it was asked for the column: {cause}"
                raise _failed(label, relation, column, "", what) from cause
            if isinstance(answer, ColumnConversion):
                return label, answer
            if answer is not None:
                what = f"gave {type(answer).__name__} instead of a ColumnConversion or None"
                raise _failed(label, relation, column, "", what)
        return None

    # --- values -----------------------------------------------------------------------------------

    def __call__(self, batch: Batch) -> Batch:
        """Return ``batch`` with converted columns. Raises: ConverterFailed."""
        parts = [
            self._rows(part)
            if isinstance(part, SnapshotRows)
            else self._changes(part)
            if isinstance(part, TransactionPart)
            else part
            for part in batch.parts
        ]
        return msgspec.structs.replace(batch, parts=parts)

    def forget(self, oid: int) -> None:
        self._answers.forget(oid)
        self._converted_columns.forget(oid)

    def _chosen(self, relation: Relation) -> tuple[_ConvertedColumn, ...]:
        capture = self._capture
        if not capture.captures(relation.schema, relation.table):
            return ()
        described = self._describe(relation)
        found = []
        for index in sorted({*capture.columns(described), *capture.keys(described)}):
            column = described.columns[index]
            chosen = self._asked(described, column)
            if chosen is not None:
                found.append(_ConvertedColumn(index, column, *chosen))
        return tuple(found)

    def _rows(self, part: SnapshotRows) -> SnapshotRows:
        converted_columns = self._converted_columns.of(part.relation)
        if not converted_columns:
            return part
        lsns = [part.lsn or 0] * len(part.rows)
        if not isinstance(part.rows, RowBlock):
            held = [False] * len(part.rows)
            rows = self._converted(part.relation, part.rows, held, lsns, converted_columns)
            return msgspec.structs.replace(part, rows=rows)
        columns = list(part.rows.columns)
        for converted in converted_columns:
            texts = texts_of(columns[converted.index])
            values = self._values(part.relation, converted, texts, lsns)
            columns[converted.index] = pa.array(values, pa.string())
        return msgspec.structs.replace(part, rows=RowBlock(columns, len(part.rows)))

    def _changes(self, part: TransactionPart) -> TransactionPart:
        def converted(
            columns: tuple[_ConvertedColumn, ...], images: Sequence[Tuple], own: Sequence[Any]
        ) -> list[Tuple]:
            of = [(change, name) for change in own for name in IMAGES[type(change)]]
            keys = [name == "old" and change.old_kind is not OldTuple.FULL for change, name in of]
            lsns = [change.lsn or part.commit_lsn for change, _ in of]
            return self._converted(own[0].relation, images, keys, lsns, columns)

        changes = rewritten_changes(part.changes, self._converted_columns, converted)
        return msgspec.structs.replace(part, changes=changes)

    def _converted(
        self,
        relation: Relation,
        images: Sequence[Tuple],
        keys: Sequence[bool],
        lsns: Sequence[int],
        converted_columns: Sequence[_ConvertedColumn],
    ) -> list[Tuple]:
        """Return ``images`` converted.

        Images marked in ``keys`` have no other columns: their NULLs are missing values.
        """
        rows = [list(image) for image in images]
        for converted in converted_columns:
            at = converted.index
            held = [
                n
                for n, row in enumerate(rows)
                if row
                and not isinstance(row[at], MissingValue)
                and not (keys[n] and row[at] is None)
            ]
            values = [rows[n][at] for n in held]
            found = self._values(relation, converted, values, [lsns[n] for n in held])
            for n, value in zip(held, found, strict=True):
                rows[n][at] = value
        return [tuple(row) for row in rows]

    def _values(
        self,
        relation: Relation,
        converted: _ConvertedColumn,
        values: Sequence[Value],
        lsns: Sequence[int],
    ) -> list[str | None]:
        """Return the converted ``values`` of one column. Raises: ConverterFailed."""
        if not values:
            return []
        try:
            return _carried(converted.conversion, values)
        except Exception as cause:  # noqa: BLE001 - the value is looked for
            log.debug("converter %s: %s", converted.label, type(cause).__name__)
        found: list[str | None] = []
        for value, lsn in zip(values, lsns, strict=True):
            try:
                found += _carried(converted.conversion, [value])
            except Exception as cause:
                what = _reason(cause)
                if self._mode == "fail":
                    where = f" at LSN {lsn_text(lsn)}" if lsn else ""
                    failed = _failed(converted.label, relation, converted.column, where, what)
                    raise failed from cause
                self._report(relation, converted, what)
                found.append(None)
        return found

    def _report(self, relation: Relation, converted: _ConvertedColumn, what: str) -> None:
        """Warn once for each column, unless values are left out silently."""
        key = (relation.name, converted.column.name)
        if self._mode == "skip" or key in self._reported:
            return
        self._reported.add(key)
        log.warning(
            "column %s of %s: the converter %s %s; null is written for such values",
            converted.column.name, relation.name, converted.label, what,
            extra={"table": relation.name},
        )  # fmt: skip


def _carried(conversion: ColumnConversion, values: Sequence[Value]) -> list[str | None]:
    answers = conversion.values(values)  # type: ignore[arg-type] # texts and None
    if isinstance(answers, str | bytes) or len(answers) != len(values):
        raise TypeError(f"it gave something else than {len(values)} values for {len(values)}")
    return [carried(conversion.schema, answer) for answer in answers]


def _reason(cause: Exception) -> str:
    """Return the reason without the value, which an exception's text may hold."""
    text = str(cause) if type(cause) is TypeError and str(cause).startswith("it gave") else ""
    return f"raised {type(cause).__name__}" if not text else f"failed: {text}"


def _failed(label: str, relation: Relation, column: Column, where: str, what: str) -> RecordError:
    text = f"the converter {label} of column {column.name} of {relation.name}{where} {what}"
    return ConverterFailed(text, converter=label)
