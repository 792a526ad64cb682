"""Tuples of one relation version to Arrow record batches.

Columns are converted whole, from PostgreSQL text or send format. What is not there (UNCHANGED, ABSENT)
is null like NULL; `RelationCodec.unchanged` tells the two apart for those who need it.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from waltap.arrow.column import strings
from waltap.arrow.out_of_range import ArrowMalformed, ArrowMisfit, named
from waltap.decode.relation import Column, Relation
from waltap.decode.tuple_image import UNCHANGED, MissingValue, Tuple
from waltap.mapping.type_mapping import ArrowMapping, ColumnMapping, TypeMapper
from waltap.transactions.row_block import RowBlock, texts_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RelationCodec"]

_NONE = type(None)


class _ColumnCodec:
    """How one column of the tuples becomes an array."""

    __slots__ = ("arrow", "column", "index", "mapping")

    def __init__(self, index: int, column: Column, mapping: ColumnMapping) -> None:
        self.index, self.column, self.mapping = index, column, mapping
        self.arrow: ArrowMapping = mapping.arrow or strings()

    def field(self) -> "pa.Field":
        """Return the Arrow field: nullable, as a value that is not there is null."""
        import pyarrow as pa

        metadata = dict(self.arrow.metadata)
        data_type = self.column.data_type
        if data_type is not None:
            metadata["postgres.type"] = self.column.type_text or data_type.name
        return pa.field(self.column.name, self.arrow.type(), nullable=True, metadata=metadata)

    def array(self, values: Sequence[Any]) -> "pa.Array":
        """Return the column's values as an array of the field's type."""
        kinds = set(map(type, values))
        if MissingValue in kinds:
            values = [None if value.__class__ is MissingValue else value for value in values]
            kinds.discard(MissingValue)
        if bytes not in kinds:
            return self.arrow.column(values)
        if self.arrow.binary is not None and kinds <= {bytes, _NONE}:
            array = self.arrow.binary(values)
            if array is not None:
                return array
        read = self.mapping.from_binary
        if read is None:
            raise TypeError("a value in send format of a type that is read as text only")
        return self.arrow.column(
            [read(value) if value.__class__ is bytes else value for value in values]
        )

    def block(self, values: "pa.Array") -> "pa.Array":
        """Return a column of text as an array of the field's type."""
        if self.arrow.text is not None:
            return self.arrow.text(values)
        return self.arrow.column(texts_of(values))


class RelationCodec:
    """Renders tuples of ``relation`` as record batches of the columns that ``mapper`` maps.

    Columns keep the relation's order; columns of unknown types are left out.
    """

    def __init__(self, relation: Relation, mapper: TypeMapper) -> None:
        import pyarrow as pa

        self._columns: list[_ColumnCodec] = []
        for index, column in enumerate(relation.columns):
            mapping = mapper.column(column)
            if mapping is not None:
                self._columns.append(_ColumnCodec(index, column, mapping))
        self._relation = relation
        self._misfits = mapper.options.arrow_misfits
        self.misfits: dict[tuple[str, str], int] = {}
        """(column, reason) → values that became null because their Arrow type cannot hold them."""
        self._width = len(relation.columns)
        self.schema: pa.Schema = pa.schema([column.field() for column in self._columns])

    def batch(self, rows: Sequence[Tuple]) -> "pa.RecordBatch":
        """Return ``rows``, each as long as the relation, as one batch of `schema`.

        Raises: ArrowMisfit for a value its type cannot hold, if that is the policy, else it becomes
        null and is counted in `misfits`; ArrowMalformed for text of another type. Both name the
        column.
        """
        import pyarrow as pa

        if isinstance(rows, RowBlock):
            given = rows.columns
            arrays = [self._array(c, c.block, given[c.index]) for c in self._columns]
        else:
            columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * self._width
            arrays = [self._array(c, c.array, columns[c.index]) for c in self._columns]
        if not arrays:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(
        self, codec: _ColumnCodec, convert: "Callable[[Any], pa.Array]", values: Any
    ) -> "pa.Array":
        name = codec.column.name
        try:
            array = convert(values)
        except (ArrowMisfit, ArrowMalformed) as error:
            self._misfits.take()
            named(error, f"column {name} of {self._relation.name}")
        if self._misfits:
            for reason, count in self._misfits.take().items():
                self.misfits[name, reason] = self.misfits.get((name, reason), 0) + count
        return array

    def unchanged(self, rows: Sequence[Tuple]) -> "pa.Array":
        """Return, for each row, the names of its columns that the server did not send (TOAST)."""
        import pyarrow as pa

        names = [(codec.index, codec.column.name) for codec in self._columns]
        found = [
            [name for index, name in names if row[index] is UNCHANGED] if UNCHANGED in row else []
            for row in rows
        ]
        return pa.array(found, pa.list_(pa.string()))
