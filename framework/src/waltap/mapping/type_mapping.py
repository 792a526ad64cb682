"""Type mapping is data: what one column becomes in Connect, JSON and Arrow.

`register_types` contributes `TypeSpec`s; the first whose ``claims`` accepts a data type builds its
`ColumnMapping`. A mapping is built once per column of a relation version; its callables run per
value.

Every decoder hands values over as PostgreSQL text (or, with pgoutput's ``binary``, in send format,
which ``from_binary`` turns into the same text), so that all semantics are written once, on text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from waltap.arrow.out_of_range import MisfitCount
from waltap.decode.relation import Column, DataType, Relation, TypeKind
from waltap.mapping.connect_schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa


__all__ = [
    "ArrowMapping",
    "ColumnMapping",
    "JsonColumn",
    "JsonExpression",
    "TypeMapper",
    "TypeOptions",
    "TypeSample",
    "types_named",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeOptions:
    """The modes that choose among the rows of the type table; names are Debezium's properties."""

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
    arrow_misfit: str = "null"
    """What an Arrow column does with a value its type cannot hold: error, null or string."""
    arrow_misfits: MisfitCount = field(default_factory=MisfitCount, compare=False, repr=False)
    """Where the values that became null are counted."""
    arrow_unconstrained_numeric: str = "string"
    """Arrow type of ``numeric`` without precision, or of more than 38 digits: string (exact digits)
    or decimal256."""
    multidimensional_arrays: str = "debezium"
    """Elements of the outer dimension: debezium (null, or Java's ``[Ljava.lang.String;@0`` where
    Debezium writes such a text) or literal (each inner array as PostgreSQL text, where the element
    schema is a string; null elsewhere)."""
    infinite_date: str = "debezium"
    """Day number of ``date`` ±infinity: debezium (its overflown numbers -2147472692 and
    -2147472691; in snapshots and arrays -622191234 and -625821272) or extreme (the largest and
    smallest int32)."""
    composite_types: str = "debezium"
    """Composite types: debezium (as any unknown type) or struct."""
    streamed_names: str = "null"
    """Values of type ``name`` while streaming: null, as Debezium writes them, or value."""
    on_misfit: Callable[[str, str], None] | None = None
    """Called with column name and reason, never the value, for each value that becomes null because
    its Connect type cannot hold it; not with ``event.converting.failure.handling.mode`` = fail,
    which raises ValueError instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowMapping:
    """The analytic form of a column.

    ``type`` is called once and gives the Arrow type (pyarrow is imported only then). ``column``
    turns a column of values (text or None; UNCHANGED and ABSENT were replaced by None before)
    into an array of that type. Raises: SinkError naming the value's kind, never the value, when one
    does not fit and the policy is "error". ``binary`` does the same for values in send format; None,
    or its answer None: they are read as text first. ``text`` does the same for an Arrow array of
    strings; None: ``column`` gets its values as a list.
    """

    type: "Callable[[], pa.DataType]"
    column: "Callable[[Sequence[str | None]], pa.Array]"
    metadata: tuple[tuple[str, str], ...] = ()
    binary: "Callable[[Sequence[bytes | None]], pa.Array | None] | None" = None
    text: "Callable[[pa.StringArray], pa.Array] | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonExpression:
    """``to_json`` as Python source, so that a generated function can do without the call.

    ``template`` is one expression; each ``{v}`` in it stands for the name of a local variable that
    holds the PostgreSQL text (`source` replaces them). It may stand inside a replacement field of a
    triple-quoted f-string of Python 3.11: it has no backslash, no triple quote, no ``#``, no
    ``!``, no newline and no ``:`` outside brackets. ``names`` are the globals it needs; equal names
    mean equal objects in all mappings of one registry, so they can be merged.
    """

    template: str
    names: Mapping[str, object] = field(default_factory=dict)

    def source(self, variable: str) -> str:
        """Return the expression over ``variable``."""
        return self.template.replace("{v}", variable)


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonColumn:
    """``to_json`` for whole columns of text, as Arrow arrays of strings.

    ``convert`` gives an array of as many JSON texts, null where NULL is (what stands for NULL is written
    by its caller); without the quotation marks around each where ``quoted``. It gives None where a value
    is none that it knows how to write: the column is then written value by value by ``to_json``, which
    has the last word on every value. What it gives equals that byte by byte.
    """

    convert: "Callable[[pa.StringArray], pa.Array | None]"
    quoted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMapping:
    """What one column of a relation becomes.

    ``schema``         the Connect schema of the field, default and optionality included.
    ``to_json``        PostgreSQL text → JSON text of the Connect value; None: the text itself is
                       that JSON already (integers). Raises ValueError for text of another type.
    ``to_connect``     PostgreSQL text → Connect value (int, float, bool, str, bytes, list, dict).
    ``fallback_json``  JSON of the value that stands in where NULL or nothing came for a required
                       field; also what replaces NULL when ``replace.null.with.default`` applies.
                       "null" where there is no such value.
    ``null_json``      JSON written for SQL NULL.
    ``unavailable_json`` JSON of the placeholder for an UNCHANGED value.
    ``from_binary``    send format → the same text as the server would print; None if never binary.
    """

    schema: Schema
    to_json: Callable[[str], str] | None
    to_connect: Callable[[str], object]
    fallback_json: str
    null_json: str
    unavailable_json: str
    from_binary: Callable[[bytes], str] | None = None
    arrow: ArrowMapping | None = None
    unavailable: object = None
    fallback: object = None
    json_expression: JsonExpression | None = None
    """The same as ``to_json``, in line; None where only the call exists (or ``to_json`` is None)."""
    json_column: JsonColumn | None = None
    """The same as ``to_json``, for a column at once; None where there is only the way by value."""
    streamed_as_null: bool = False
    """Debezium gives null for every streamed value of this type (``name``), the value only in
    snapshots. A format that must equal its events writes ``null_json`` while streaming."""
    read: "ColumnMapping | None" = None
    """The mapping of values that a snapshot reads, where Debezium writes them otherwise than while
    streaming; of the same schema. Keys are written as while streaming."""
    opaque: bool = False
    """The type is unknown; the values are the bytes of its text."""
    converted: bool = False
    """A converter of columns gives schema and values: texts are what `waltap.mapping.conversion` carries,
    not PostgreSQL's."""

    def json(self, text: str) -> str:
        """Return the JSON of a value. Raises: as ``to_json``."""
        return text if self.to_json is None else self.to_json(text)


class TypeMapper(Protocol):
    """Maps a column; given to a `TypeSpec` so that arrays and domains can map their parts."""

    options: TypeOptions

    def column(self, column: Column) -> ColumnMapping | None:
        """Return the mapping of ``column``, or None when it is left out (unknown type)."""

    def of(self, relation: Relation, column: Column) -> ColumnMapping | None:
        """Return the mapping of a column of ``relation``: that of its conversion, where it has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeSample:
    """A type of a family with a value, for the reference page and for tests.

    ``declaration`` is how SQL writes the type; ``text`` a value as the server prints it; ``misfits``
    are values that the Connect or the Arrow form cannot hold.
    """

    declaration: str
    data_type: DataType
    typmod: int = -1
    text: str
    misfits: tuple[str, ...] = ()

    @classmethod
    def of_extension(cls, name: str, text: str) -> "TypeSample":
        """Return a sample of the type ``name`` of an extension, which has an OID of its own everywhere."""
        data_type = DataType(oid=16_384, schema="public", name=name)
        return cls(declaration=name, data_type=data_type, text=text)


def types_named(*names: str) -> Callable[[DataType], bool]:
    """Return a `TypeSpec.claims` for base types of an extension, whatever schema it was created in."""
    wanted = frozenset(names)
    return lambda data_type: data_type.kind is TypeKind.BASE and data_type.name in wanted
