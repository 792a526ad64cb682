"""A column's mapping to Connect, JSON and Arrow.

`register_types` contributes `TypeSpec`s; the first whose ``claims`` accepts a data type builds
its `ColumnMapping`. A mapping is built once per column of a relation version; its callables run
per value.

Every decoder passes values as PostgreSQL text, so all semantics are written once, on text.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from waltap.base.import_rules import pa
from waltap.changes.decode.relation import Column, DataType, Relation, TypeKind
from waltap.changes.mapping.connect_schema import Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeOptions:
    """Select rows of the type table; names are Debezium's properties."""

    time_precision_mode: str = "adaptive"
    decimal_handling_mode: str = "precise"
    hstore_handling_mode: str = "json"
    interval_handling_mode: str = "numeric"
    binary_handling_mode: str = "bytes"
    money_fraction_digits: int = 2
    include_unknown_datatypes: bool = False
    unavailable_value_placeholder: bytes = b"__debezium_unavailable_value"
    replace_null_with_default: bool = True
    event_converting_failure_handling_mode: str = "warn"
    # What an Arrow column does with a value that its type cannot hold: error, null or string.
    arrow_misfit: str = "null"
    # Counts the values that became null, by reason. Conversions do not know their column: the caller
    # of a conversion clears the counts.
    arrow_misfits: Counter[str] = field(default_factory=Counter, compare=False, repr=False)
    # Arrow type of `numeric` without precision, or of more than 38 digits: string (exact digits)
    # or decimal256.
    arrow_unconstrained_numeric: str = "string"
    # Elements of the outer dimension. debezium: null, or Java's `[Ljava.lang.String;@0` where
    # Debezium writes such a text. literal: each inner array as PostgreSQL text where the element
    # schema is a string, null elsewhere.
    multidimensional_arrays: str = "debezium"
    # Day number of `date` ±infinity. debezium: its overflown numbers -2147472692 and -2147472691;
    # in snapshots and arrays -622191234 and -625821272. extreme: the largest and smallest int32.
    infinite_date: str = "debezium"
    # debezium (as any unknown type) or struct.
    composite_types: str = "debezium"
    # Values of type `name` while streaming: null, as Debezium writes them, or value.
    streamed_names: str = "null"
    # Called with column name and reason, never the value, for each value that becomes null
    # because its Connect type cannot hold it. Not called with
    # `event.converting.failure.handling.mode` = fail, which raises ValueError instead.
    on_misfit: Callable[[str, str], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowMapping:
    """Define the Arrow form of a column."""

    # Called once; imports pyarrow and returns the Arrow type.
    type: "Callable[[], pa.DataType]"
    # Turns the column's values (text or None, no UNCHANGED or ABSENT) into an array of that type.
    # Raises SinkError when a value does not fit and the policy is "error"; the error names the
    # value's kind, never the value.
    column: "Callable[[Sequence[str | None]], pa.Array]"
    metadata: tuple[tuple[str, str], ...] = ()
    # The same for an Arrow array of strings. None: `column` gets its values as a list.
    text: "Callable[[pa.StringArray], pa.Array] | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonExpression:
    """Hold ``to_json`` as Python source, without a call.

    The expression may be placed inside a replacement field of a triple-quoted f-string of Python
    3.11. So it has no backslash, no triple quote, no ``#``, no ``!``, no newline and no ``:``
    outside brackets.
    """

    # One expression; `source` replaces each `{v}` by the name of the local variable that holds
    # the PostgreSQL text.
    template: str
    # The globals that it needs. Equal names mean equal objects in all mappings of one registry,
    # so they can be merged.
    names: Mapping[str, object] = field(default_factory=dict)

    def source(self, variable: str) -> str:
        return self.template.replace("{v}", variable)


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonColumn:
    """Convert whole columns of text to JSON."""

    # Returns an array of as many JSON texts, null for NULL (the caller writes its replacement).
    # They equal the result of `to_json` byte by byte. None means that it cannot write a value:
    # the caller then writes the column value by value with `to_json`.
    convert: "Callable[[pa.StringArray], pa.Array | None]"
    # The texts lack the quotation marks around them.
    quoted: bool = False
    # Returns the column's integers, of 64 bits: the values that `to_connect` returns, or the unscaled
    # numbers of its decimals. None as in `convert`; the integer of a NULL is arbitrary.
    numbers: "Callable[[pa.StringArray], pa.Int64Array | None] | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMapping:
    """Map one column of a relation."""

    # The field's Connect schema, with default and optionality.
    schema: Schema
    # PostgreSQL text → JSON text of the Connect value. None: the text is that JSON already
    # (integers). Raises ValueError for text of another type.
    to_json: Callable[[str], str] | None
    # PostgreSQL text → Connect value (int, float, bool, str, bytes, list, dict).
    to_connect: Callable[[str], object]
    # JSON for NULL, or for nothing, in this field: of a required one its default or zero; of an optional
    # one its default where `replace.null.with.default` applies, else "null".
    null_json: str
    # JSON of the placeholder for an UNCHANGED value.
    unavailable_json: str
    arrow: ArrowMapping | None = None
    unavailable: object = None
    # The Connect value for NULL in a required field.
    fallback: object = None
    # `to_json` in line; None where only the call exists, or `to_json` is None.
    json_expression: JsonExpression | None = None
    # `to_json` for a whole column; None where it works only by value.
    json_column: JsonColumn | None = None
    # Values are the integers that the schema's kind holds, and their text is decimal: a format may
    # read whole columns of them by a cast.
    integers: bool = False
    # Debezium streams null for every value of this type (`name`), and gives the value only in
    # snapshots. A format that must equal its events writes `null_json` while streaming. Keys have the
    # value.
    streamed_as_null: bool = False
    # The mapping of values that a snapshot reads, where Debezium writes them differently while
    # streaming; it has the same schema.
    read: "ColumnMapping | None" = None
    # The type is unknown; the values are the bytes of its text.
    opaque: bool = False
    # A converter gives schema and values: texts are as in `waltap.changes.mapping.conversion`, not
    # PostgreSQL's.
    converted: bool = False

    def json(self, text: str) -> str:
        """Return the JSON of a value; raises as ``to_json`` does."""
        return text if self.to_json is None else self.to_json(text)


class TypeMapper(Protocol):
    """Map a column.

    A `TypeSpec` gets it, so that arrays and domains can map their parts.
    """

    options: TypeOptions

    def column(self, column: Column) -> ColumnMapping | None:
        """Return the mapping of ``column``; None leaves an unknown type out."""

    def of(self, relation: Relation, column: Column) -> ColumnMapping | None:
        """Return the mapping of a column of ``relation``.

        Its conversion comes first, where it has one.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeSample:
    """Show a type with a value, for pages and tests."""

    # The type as SQL writes it.
    declaration: str
    data_type: DataType
    typmod: int = -1
    # A value as the server prints it.
    text: str
    # Values that the Connect or the Arrow form cannot hold.
    misfits: tuple[str, ...] = ()

    @classmethod
    def of_extension(cls, name: str, text: str) -> "TypeSample":
        # An extension's type has another OID in every database; 16384 is the first that users
        # get.
        data_type = DataType(oid=16_384, schema="public", name=name)
        return cls(declaration=name, data_type=data_type, text=text)


def types_named(*names: str) -> Callable[[DataType], bool]:
    """Return a `TypeSpec.claims` for base types of an extension.

    The schema does not matter: a user may create the extension in any.
    """
    wanted = frozenset(names)
    return lambda data_type: data_type.kind is TypeKind.BASE and data_type.name in wanted
