"""Convert rows to typed values for drivers, by way of Arrow."""

import datetime as dt
import json
import logging
import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec

from waltap.base.import_rules import pa
from waltap.changes.arrow.tuples import RelationCodec
from waltap.changes.decode.relation import Relation, as_text
from waltap.changes.decode.row_block import RowBlock
from waltap.changes.decode.tuple_image import MissingValue, Tuple
from waltap.changes.mapping.type_mapping import TypeMapper
from waltap_sinks.sql.errors import SqlKeyUnfit
from waltap_sinks.sql.shape import TargetColumn, TargetShape

log = logging.getLogger(__name__)

EPOCH: Final = dt.datetime.fromtimestamp(0, dt.UTC)

# --- types ----------------------------------------------------------------------------------------


def arrow_type(column: TargetColumn) -> "pa.DataType":
    """Return a column's Arrow type; text if it has none."""
    mapping = column.mapping
    return pa.string() if mapping is None or mapping.arrow is None else mapping.arrow.type()


def _readable(shape: TargetShape) -> Relation:
    """Return the shape's relation with types for key parts."""
    unmapped = {column.index for column in shape.key if column.mapping is None}
    columns = (as_text(c) if n in unmapped else c for n, c in enumerate(shape.relation.columns))
    return msgspec.structs.replace(shape.relation, columns=tuple(columns))


def is_wider(
    existing: str,
    wanted: str,
    families: Sequence[Sequence[str]],
    *,
    text: str = "",
    unlimited: bool = True,
) -> bool | None:
    """Return whether type ``wanted`` holds values that ``existing`` does not.

    Each type of ``families`` holds the values of the types before it, and ``text`` holds all values.
    With ``unlimited`` a type without modifiers has no limit, else the smallest one. None for types of
    different kinds: values of one may change in the other.
    """
    if existing in {wanted, text}:
        return False
    if wanted == text:
        return True
    (old, had), (new, has) = _parsed(existing), _parsed(wanted)
    for family in families:
        if old in family and new in family and old != new:
            return family.index(new) > family.index(old)
    if old != new:
        return None
    if had and has and old.lower() in {"numeric", "decimal"}:
        (precision, scale), (wide, fine) = (*had, 0)[:2], (*has, 0)[:2]
        return wide - fine > precision - scale or fine > scale
    none: tuple[float, ...] = (math.inf,) if unlimited else ()
    return (has[:1] or none) > (had[:1] or none)


# Precision of a decimal; numbers with more digits are text.
MOST_DIGITS: Final = 38
# Digits of integers.
DIGITS: Final = {"smallint": 5, "int": 10, "integer": 10, "bigint": 19}


def common_decimal(existing: str, wanted: str) -> tuple[int, int] | None:
    """Return precision and scale of a decimal for the exact numbers of both types.

    None if ``wanted`` is no decimal.
    """
    if "(" not in wanted:
        return None
    sizes = []
    for text in (existing, wanted):
        name, modifiers = _parsed(text.lower())
        if name in DIGITS:
            sizes.append((DIGITS[name], 0))
        elif name in {"numeric", "decimal"} and modifiers:
            precision, scale = (*modifiers, 0)[:2]
            sizes.append((precision - scale, scale))
        else:
            return None
    whole, scale = map(max, zip(*sizes, strict=True))
    return whole + scale, scale


# The types whose values each type has, too, beside its family in `is_wider`.
LOSSLESS: Final = {
    "double": {"smallint", "int", "integer"},
    "double precision": {"smallint", "integer"},
    "datetime(6)": {"date"},
    "timestamp": {"date"},
    "timestamp with time zone": {"date", "timestamp", "timestamp without time zone"},
}


def is_lossless(existing: str, wanted: str) -> bool:
    """Return whether all values of ``existing`` stay the same in ``wanted``."""
    return _parsed(existing.lower())[0] in LOSSLESS.get(wanted.lower(), ())


def _parsed(text: str) -> tuple[str, tuple[int, ...]]:
    """Return a type's name and modifiers.

    ``timestamp(3) without time zone`` has the modifiers (3,).
    """
    match = re.search(r"\(([\d,-]+)\)", text)
    if match is None:
        return text, ()
    return text[: match.start()] + text[match.end() :], tuple(map(int, match[1].split(",")))


# --- rows -----------------------------------------------------------------------------------------


class TypedRows:
    """Convert tuples of each shape to columns of values.

    A value that its type cannot hold becomes null (``waltap.arrow.out.of.range``) with one warning.
    In a key every method raises SqlKeyUnfit for it.
    """

    def __init__(
        self, types: TypeMapper, adapt: "Callable[[pa.DataType], Callable[[Any], Any] | None]"
    ) -> None:
        # Returns the conversion for values of an Arrow type; None leaves them as they are.
        self._types, self._adapt = types, adapt
        self._codecs: WeakKeyDictionary[TargetShape, RelationCodec] = WeakKeyDictionary()
        self._warned: set[tuple[str, str]] = set()

    def batch(self, shape: TargetShape, rows: Sequence[Tuple]) -> "pa.RecordBatch":
        """Return ``rows`` as Arrow columns with the source's names.

        Unsent values are null.
        """
        codec = self._codecs.get(shape)
        if codec is None:
            codec = self._codecs[shape] = RelationCodec(_readable(shape), self._types)
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
            if self._first(column, reason):
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
        """Return a list of values for each column of the key.

        ``keys`` are results of `TargetShape.key_of`.
        """
        found = []
        for column, values in zip(shape.key, shape.keys(keys), strict=True):
            texts: Any = shape.values(column, values)
            arrow = None if column.mapping is None else column.mapping.arrow
            array = texts if arrow is None else arrow.column(texts)
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
        lost = made.count(None) > values.count(None)
        if lost and self._first(f"{shape.source}.{column.column.name}", "not held"):
            log.warning(
                "column %s of %s: the target has no NaN or infinity; null is written for such values",
                column.column.name, shape.source,
            )  # fmt: skip
        return made

    def _first(self, column: str, reason: str) -> bool:
        """Return whether a warning is new."""
        new = (column, reason) not in self._warned
        self._warned.add((column, reason))
        return new


def _require_held(
    shape: TargetShape, column: TargetColumn, given: Sequence[object], made: Sequence[object]
) -> None:
    """Check that no value of a key became null. Raises: SqlKeyUnfit."""
    for before, now in zip(given, made, strict=True):
        if now is None and before is not None and not isinstance(before, MissingValue):
            raise SqlKeyUnfit(
                f"the target's table {shape.name} cannot hold a value of {column.column.name}, which "
                f"rows of {shape.source} are known by",
                source=re.escape(shape.source),
            )


# --- values ---------------------------------------------------------------------------------------


def instant(ts: int) -> dt.datetime:
    """Return an instant from µs since 1970 UTC."""
    return EPOCH + dt.timedelta(microseconds=ts)


def finite(value: float) -> float | None:
    """Return a number, None if it is NaN or infinite."""
    return value if math.isfinite(value) else None


def json_text(kind: "pa.DataType") -> Callable[[Any], str] | None:
    """Return the conversion of nested values to JSON.

    Maps with text keys become objects. Numbers stay exact; times and bytes become text. The result
    is None for a type without parts.
    """
    if not pa.types.is_nested(kind):
        return None
    parts = _parts(kind)
    return lambda value: json.dumps(parts(value), default=_json_scalar, ensure_ascii=False)


def _parts(kind: "pa.DataType") -> Callable[[Any], Any]:
    if pa.types.is_map(kind):
        key, item = _parts(kind.key_type), _parts(kind.item_type)
        form = dict if pa.types.is_string(kind.key_type) else list
        return _unless_null(lambda pairs: form((key(k), item(v)) for k, v in pairs))
    if pa.types.is_struct(kind):
        fields = [(field.name, _parts(field.type)) for field in kind]
        return _unless_null(lambda value: {name: part(value[name]) for name, part in fields})
    if pa.types.is_list(kind):
        each = _parts(kind.value_type)
        return _unless_null(lambda items: list(map(each, items)))
    return _finite_or_text if pa.types.is_floating(kind) else lambda value: value


def _finite_or_text(value: float | None) -> float | str | None:
    """Return a number, or its text if JSON lacks it."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _unless_null(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else make(value)


def _json_scalar(item: object) -> object:
    if isinstance(item, bytes):
        return item.hex()
    if isinstance(item, (dt.date, dt.time)):
        return item.isoformat()
    if isinstance(item, Decimal):
        return f"{item:f}"
    raise TypeError(type(item).__name__)
