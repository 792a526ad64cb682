"""Rows of the source as values that drivers take, by the Arrow types of the registry."""

import datetime as dt
import json
import logging
import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from waltap.changes.arrow.tuples import RelationCodec
from waltap.changes.decode.tuple_image import MissingValue, Tuple
from waltap.changes.mapping.type_mapping import TypeMapper
from waltap.changes.transactions.row_block import RowBlock
from waltap_sinks.sql.errors import SqlKeyUnfit
from waltap_sinks.sql.shape import TargetColumn, TargetShape

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TypedRows", "arrow_type", "finite", "json_text"]

log = logging.getLogger(__name__)


def arrow_type(column: TargetColumn) -> "pa.DataType":
    """Return the Arrow type of a column; text for what has none."""
    import pyarrow as pa

    mapping = column.mapping
    return pa.string() if mapping is None or mapping.arrow is None else mapping.arrow.type()


class TypedRows:
    """Makes values of tuples, for each shape. ``adapt`` says what becomes of the values of an Arrow type,
    None: they stay. What does not fit its type is null (``waltap.arrow.out_of_range``); that is
    told once. In a key it raises SqlKeyUnfit, from every method."""

    def __init__(
        self, types: TypeMapper, adapt: "Callable[[pa.DataType], Callable[[Any], Any] | None]"
    ) -> None:
        self._types, self._adapt = types, adapt
        self._codecs: WeakKeyDictionary[TargetShape, RelationCodec] = WeakKeyDictionary()
        self._told: set[tuple[str, str]] = set()

    def batch(self, shape: TargetShape, rows: Sequence[Tuple]) -> "pa.RecordBatch":
        """Return ``rows`` as Arrow columns of the source's names; of values that were not sent, null."""
        codec = self._codecs.get(shape)
        if codec is None:
            codec = self._codecs[shape] = RelationCodec(shape.relation, self._types)
        masks = {c.index: c.mask for c in shape.columns if c.mask is not None}
        if masks and isinstance(rows, RowBlock):
            columns = [
                rows.mapped(n, masks[n]) if n in masks else column
                for n, column in enumerate(rows.columns)
            ]
            rows = RowBlock(columns, len(rows))
        elif masks:
            rows = [
                tuple(masks[n](value) if n in masks else value for n, value in enumerate(row))
                for row in rows
            ]
        made = codec.batch(rows)
        for (column, reason), count in codec.misfits.items():
            if (column, reason) not in self._told:
                self._told.add((column, reason))
                log.warning(
                    "column %s of %s: %s; null is written for such values (%d so far)",
                    column, shape.source, reason, count,
                )  # fmt: skip
        codec.misfits = {}
        for key in shape.key:
            array = made.column(key.column.name)
            if array.null_count:
                _require_held(shape, key, [row[key.index] for row in rows], array.to_pylist())
        return made

    def columns(
        self, shape: TargetShape, columns: Sequence[TargetColumn], rows: Sequence[Tuple]
    ) -> list[list[Any]]:
        """Return the values of ``columns``, a list for each."""
        batch = self.batch(shape, rows)
        found = []
        for column in columns:
            array = batch.column(column.column.name)
            values = self._values(shape, column, array)
            if column.key:
                _require_held(shape, column, array.to_pylist(), values)
            found.append(values)
        return found

    def keys(self, shape: TargetShape, keys: Sequence[Any]) -> list[list[Any]]:
        """Return the values of the key's columns, of what `TargetShape.key_of` gave."""
        found = []
        for column, values in zip(shape.key, shape.keys(keys), strict=True):
            texts: Any = shape.values(column, values)
            assert column.mapping is not None
            array = texts if column.mapping.arrow is None else column.mapping.arrow.column(texts)
            made = self._values(shape, column, array)
            _require_held(shape, column, texts, made)
            found.append(made)
        return found

    def _values(self, shape: TargetShape, column: TargetColumn, array: Any) -> list[Any]:
        values: list[Any] = array.to_pylist() if hasattr(array, "to_pylist") else list(array)
        adapt = self._adapt(arrow_type(column))
        if adapt is None:
            return values
        made = [None if value is None else adapt(value) for value in values]
        told = f"{shape.source}.{column.column.name}", "not held"
        if told not in self._told and made.count(None) > values.count(None):
            self._told.add(told)
            log.warning(
                "column %s of %s: the target has no NaN or infinity; null is written for such values",
                column.column.name, shape.source,
            )  # fmt: skip
        return made


def finite(value: float) -> float | None:
    """Return a number, None where it is none or infinite."""
    return value if math.isfinite(value) else None


def _require_held(
    shape: TargetShape, column: TargetColumn, given: Sequence[object], made: Sequence[object]
) -> None:
    """See that no value of a key has become null. Raises: SqlKeyUnfit."""
    for before, now in zip(given, made, strict=True):
        if now is None and before is not None and not isinstance(before, MissingValue):
            raise SqlKeyUnfit(
                f"the target's table {shape.name} cannot hold a value of {column.column.name}, which "
                f"rows of {shape.source} are known by",
                source=re.escape(shape.source),
            )


def json_text(kind: "pa.DataType") -> Callable[[Any], str] | None:
    """Return what makes JSON of the values of a type with parts: lists, structs, and maps, which are
    objects where their keys are text. Numbers stay exact, times and bytes are text. None: there are no
    parts."""
    import pyarrow.types as pat

    if not pat.is_nested(kind):
        return None
    parts = _parts(kind)
    return lambda value: json.dumps(parts(value), default=_written, ensure_ascii=False)


def _parts(kind: "pa.DataType") -> Callable[[Any], Any]:
    """Return what makes a value of lists, objects and scalars."""
    import pyarrow.types as pat

    if pat.is_map(kind):
        key, item = _parts(kind.key_type), _parts(kind.item_type)
        form = dict if pat.is_string(kind.key_type) else list
        return _unless_null(lambda pairs: form((key(k), item(v)) for k, v in pairs))
    if pat.is_struct(kind):
        fields = [(field.name, _parts(field.type)) for field in kind]
        return _unless_null(lambda value: {name: part(value[name]) for name, part in fields})
    if pat.is_list(kind):
        each = _parts(kind.value_type)
        return _unless_null(lambda items: list(map(each, items)))
    return lambda value: value


def _unless_null(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else make(value)


def _written(item: object) -> object:
    if isinstance(item, bytes):
        return item.hex()
    if isinstance(item, (dt.date, dt.time)):
        return item.isoformat()
    if isinstance(item, Decimal):
        return str(item)
    raise TypeError(type(item).__name__)
