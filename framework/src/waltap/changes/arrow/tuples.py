"""Convert tuples of one relation version to Arrow record batches.

Whole columns of PostgreSQL text are converted. A missing value (UNCHANGED, ABSENT)
becomes null like NULL; `RelationCodec.unchanged` lists the unchanged ones.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

from waltap.base.import_rules import pa
from waltap.changes.arrow.column import strings, text_column
from waltap.changes.arrow.out_of_range import ArrowMalformed, ArrowMisfit
from waltap.changes.decode.relation import Column, Relation
from waltap.changes.decode.row_block import RowBlock, texts_of
from waltap.changes.decode.tuple_image import UNCHANGED, MissingValue, Tuple
from waltap.changes.mapping.type_mapping import ArrowMapping, ColumnMapping, TypeMapper

# One schema takes kilobytes, and thousands of tables may have equal ones.
_SCHEMAS: "WeakValueDictionary[bytes, pa.Schema]" = WeakValueDictionary()


def schema_digest(schema: "pa.Schema") -> bytes:
    """Return a digest of a schema with its metadata."""
    return hashlib.blake2b(schema.serialize(), digest_size=16).digest()


class _ColumnCodec:
    """Convert one column of the tuples to an array."""

    __slots__ = ("_textual", "_type", "arrow", "column", "index")

    def __init__(self, index: int, column: Column, mapping: ColumnMapping) -> None:
        self.index, self.column = index, column
        self.arrow: ArrowMapping = mapping.arrow or strings()
        self._type = self.arrow.type()
        # A mapping to text may change the text.
        self._textual = str(self._type) == "string"

    def field(self) -> "pa.Field":
        metadata = dict(self.arrow.metadata)
        data_type = self.column.data_type
        if data_type is not None:
            metadata["postgres.type"] = self.column.type_text or data_type.name
        # Nullable for NOT NULL columns too, since a missing value is null.
        return pa.field(self.column.name, self._type, nullable=True, metadata=metadata)

    def array(self, values: Sequence[Any]) -> "pa.Array":
        """Return the column's values as an array of the field's type."""
        if MissingValue in set(map(type, values)):
            values = [None if value.__class__ is MissingValue else value for value in values]
        return self.arrow.column(values)

    def block(self, rows: RowBlock) -> "pa.Array":
        """Return the column of ``rows`` as an array of the field's type."""
        values = rows.arrays[self.index]
        if values.type == self._type and not self._textual:
            return values
        values = text_column(values)
        if self.arrow.text is not None:
            return self.arrow.text(values)
        return self.arrow.column(texts_of(values))


class RelationCodec:
    """Convert tuples of ``relation`` to record batches.

    Columns keep the relation's order. Columns that ``mapper`` does not map are omitted.
    """

    def __init__(self, relation: Relation, mapper: TypeMapper) -> None:
        self._columns: list[_ColumnCodec] = []
        for index, column in enumerate(relation.columns):
            mapping = mapper.column(column)
            if mapping is not None:
                self._columns.append(_ColumnCodec(index, column, mapping))
        self._relation = relation
        self._misfits = mapper.options.arrow_misfits
        # (column, reason) → number of values that became null, since their Arrow type cannot hold
        # them.
        self.misfits: dict[tuple[str, str], int] = {}
        self._width = len(relation.columns)
        schema = pa.schema([column.field() for column in self._columns])
        self.schema: pa.Schema = _SCHEMAS.setdefault(schema_digest(schema), schema)

    def batch(self, rows: Sequence[Tuple]) -> "pa.RecordBatch":
        """Return ``rows`` as one batch of `schema`.

        Each row has a value for every column of the relation.

        Raises: ArrowMisfit for a value that its type cannot hold, if the policy is error. With the
        policy null the value becomes null and counts in `misfits`. ArrowMalformed for text of another
        type. Both errors name the column.
        """
        arrays = self.arrays(rows)
        # `from_arrays` would lose the number of rows of a batch without columns.
        if not arrays:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def arrays(self, rows: Sequence[Tuple]) -> "list[pa.Array]":
        if isinstance(rows, RowBlock):
            return [self._array(c, c.block, rows) for c in self._columns]
        # Without rows there is nothing to transpose, so each column is empty.
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * self._width
        return [self._array(c, c.array, columns[c.index]) for c in self._columns]

    def _array(
        self, codec: _ColumnCodec, convert: "Callable[[Any], pa.Array]", values: Any
    ) -> "pa.Array":
        name = codec.column.name
        try:
            array = convert(values)
        except (ArrowMisfit, ArrowMalformed) as error:
            # Counts of a failed column must not be added to the next column.
            self._misfits.clear()
            where = f"column {name} of {self._relation.name}"
            raise type(error)(error.kind, where) from error
        if self._misfits:
            for reason, count in self._misfits.items():
                self.misfits[name, reason] = self.misfits.get((name, reason), 0) + count
            self._misfits.clear()
        return array

    def unchanged(self, rows: Sequence[Tuple]) -> "pa.Array":
        """Return, for each row, the names of its unchanged columns.

        The server does not send unchanged TOAST values.
        """
        names = [(codec.index, codec.column.name) for codec in self._columns]
        found = [
            [name for index, name in names if row[index] is UNCHANGED] if UNCHANGED in row else []
            for row in rows
        ]
        return pa.array(found, pa.list_(pa.string()))
