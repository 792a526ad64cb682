"""Types that Debezium omits, or sends as text bytes.

``include.unknown.datatypes`` decides. These types are composite types, multiranges, ``tsquery``,
``pg_lsn``, geometric shapes and everything that no other spec claims. ``waltap.composite.types``
makes structs of composite types.

A type may be dropped before its values are decoded. The catalogue then no longer describes the
type, but the values exist. They become strings of PostgreSQL text.
"""

import dataclasses
import re
from dataclasses import dataclass

import msgspec

from waltap.base.import_rules import pa
from waltap.changes.arrow.column import AS_TEXT, strings
from waltap.changes.arrow.out_of_range import ArrowMisfit
from waltap.changes.decode.relation import Column, DataType, TypeKind
from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.changes.mapping.json_schema import quote
from waltap.changes.mapping.type_mapping import ArrowMapping, ColumnMapping, TypeMapper, TypeOptions
from waltap.changes.mapping.value_form import ValueForm, column_mapping
from waltap_postgres.types.binary import binary_form
from waltap_postgres.types.builtin import builtin_name
from waltap_postgres.types.geometry import java_geometry
from waltap_postgres.types.text import text_mapping

# Composite types as structs, where ``waltap.composite.types`` asks for them.
#
# Debezium has no form for composite types. A value's text shows the number of its attributes, but
# not their names or types. More attributes than known mean that the type grew since. The
# ValueError makes the caller read the type again. Fewer attributes mean that the value is older
# than the type's growth, which is certain where no attribute was ever dropped.

_OTHERWISE = "a composite value with other attributes than its type has now"


def parse_record(text: str) -> list[str | None]:
    """Return the texts of the attributes of ``(1,"a b",)``.

    Raises ValueError for other text.
    """
    if len(text) < 2 or text[0] != "(" or text[-1] != ")":
        raise ValueError("malformed composite value")
    if '"' not in text and "\\" not in text:
        # Nothing between two commas is NULL; an empty text has quotes.
        return [part or None for part in text[1:-1].split(",")]
    found: list[str | None] = []
    at, end = 1, len(text) - 1
    while True:
        part: str = _ATTRIBUTE.match(text, at, end)[0]  # type: ignore[index]
        found.append(_ESCAPES(_unescaped, part) if part else None)
        at += len(part)
        if at == end:
            return found
        if text[at] != ",":
            raise ValueError("malformed composite value: a quote is never closed")
        at += 1


# A record doubles quotes inside quotes. No two parts can take one character, so that any text takes
# linear time; Python 3.11.2 matches possessive groups wrongly.
_QUOTED = r'[^"\\]*(?:(?:\\.|"")[^"\\]*)*'
_ATTRIBUTE = re.compile(rf'(?:[^",\\]+|\\.|"{_QUOTED}")*', re.DOTALL)
_ESCAPES = re.compile(rf'\\(.)|"({_QUOTED})"', re.DOTALL).sub
_INSIDE = re.compile(r'\\(.)|""', re.DOTALL).sub


def _unescaped(found: re.Match[str]) -> str:
    if found[1] is not None:
        return found[1]
    return _INSIDE(lambda each: each[1] or '"', found[2])


@dataclass(frozen=True, slots=True)
class _CompositeAttributes:
    """Hold the attributes of one type with their mappings."""

    names: tuple[str, ...]
    mappings: tuple[ColumnMapping, ...]
    # The type only ever grew: a value with fewer attributes has the first ones.
    grown: bool

    def parse(self, text: str) -> list[str | None]:
        """Return the text of each attribute.

        Raises ValueError for a value with other attributes.
        """
        parts = parse_record(text)
        short = len(self.names) - len(parts)
        if short < 0 or (short and not self.grown):
            raise ValueError(_OTHERWISE)
        return parts + [None] * short

    def json(self, text: str) -> str:
        shown = (
            f"{quote(name)}:{'null' if part is None else mapping.json(part)}"
            for name, mapping, part in zip(self.names, self.mappings, self.parse(text), strict=True)
        )
        return f"{{{','.join(shown)}}}"

    def connect(self, text: str) -> dict[str, object]:
        return {
            name: None if part is None else mapping.to_connect(part)
            for name, mapping, part in zip(self.names, self.mappings, self.parse(text), strict=True)
        }

    def arrow(self, options: TypeOptions) -> ArrowMapping:
        # The setting makes every type with misfits a column of text.
        if options.arrow_misfit == "string":
            return strings(AS_TEXT)
        parts = [mapping.arrow or strings() for mapping in self.mappings]

        def type_() -> "pa.DataType":
            return pa.struct([(n, part.type()) for n, part in zip(self.names, parts, strict=True)])

        def parsed(text: str | None) -> list[str | None] | None:
            try:
                return None if text is None else self.parse(text)
            except ValueError as error:
                if options.arrow_misfit != "null":
                    raise ArrowMisfit(_OTHERWISE) from error
                options.arrow_misfits[_OTHERWISE] += 1
                return None

        def column(values: "list[str | None]") -> "pa.Array":
            rows = [parsed(value) for value in values]
            children = [
                # Each attribute is cast as a column, by its own rules.
                part.column([None if row is None else row[n] for row in rows])
                for n, part in enumerate(parts)
            ]
            nulls = pa.array([row is None for row in rows], pa.bool_())
            return pa.StructArray.from_arrays(children, fields=list(type_()), mask=nulls)

        return ArrowMapping(type=type_, column=column)  # type: ignore[arg-type]


def composite_mapping(column: Column, mapper: TypeMapper) -> ColumnMapping:
    """Map a column of a composite type to a struct.

    Attributes of types without a mapping are texts.
    """
    assert column.data_type is not None
    known = _attributes(column.data_type, mapper)
    fields = tuple(
        # An attribute of a composite can always be NULL.
        Field(name, msgspec.structs.replace(mapping.schema, optional=True))
        for name, mapping in zip(known.names, known.mappings, strict=True)
    )
    form = ValueForm(
        schema=Schema(kind=ConnectKind.STRUCT, fields=fields),
        to_json=known.json,
        to_connect=known.connect,
        zero=dict.fromkeys(known.names),
        arrow=known.arrow(mapper.options),
    )
    return column_mapping(column, mapper.options, form)


def _attributes(data_type: DataType, mapper: TypeMapper) -> _CompositeAttributes:
    mappings = []
    for name, kind, typmod in data_type.attributes:
        each = Column(name=name, type_oid=kind.oid, typmod=typmod, data_type=kind, nullable=True)
        found = mapper.column(each) or text_mapping(each, mapper)
        mappings.append(found.read or found)
    names = tuple(name for name, _type, _modifier in data_type.attributes)
    return _CompositeAttributes(names, tuple(mappings), grown=not data_type.attributes_dropped)


_SHAPES = frozenset({"box", "circle", "line", "lseg", "path", "polygon"})


def _opaque(column: Column, mapper: TypeMapper) -> ColumnMapping:
    assert column.data_type is not None
    # Debezium gets shapes from PgJDBC, which prints their numbers as Java does.
    shape = builtin_name(column.data_type) in _SHAPES
    read = (lambda text: java_geometry(text).encode()) if shape else str.encode
    form = binary_form(mapper.options, read, strings(AS_TEXT))
    return column_mapping(column, mapper.options, dataclasses.replace(form, opaque=True))


def build_unknown(column: Column, mapper: TypeMapper) -> ColumnMapping | None:
    """Map a type that no other spec claims."""
    data_type = column.data_type
    assert data_type is not None
    # The catalogue had no answer for the OID: the type was dropped.
    if not data_type.name and data_type.kind is TypeKind.BASE:
        return text_mapping(column, mapper)
    if mapper.options.composite_types == "struct" and data_type.attributes:
        return composite_mapping(column, mapper)
    if not mapper.options.include_unknown_datatypes:
        return None
    return _opaque(column, mapper)
