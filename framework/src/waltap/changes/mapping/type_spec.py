"""A family of types, as a plugin contributes it.

Every command reads the specs of all plugins, so this module imports no mapping.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from waltap.changes.arrow.column import converted
from waltap.changes.decode.relation import Column, DataType
from waltap.changes.mapping.connect_schema import Schema
from waltap.changes.mapping.json_schema import value_json
from waltap.changes.mapping.type_mapping import ColumnMapping, TypeMapper, TypeSample
from waltap.changes.mapping.value_form import ValueForm, column_mapping, default_value

if TYPE_CHECKING:
    import pyarrow as pa

    from waltap.changes.decode.relation import Column, DataType
    from waltap.changes.mapping.type_mapping import ColumnMapping, TypeMapper, TypeSample


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeSpec:
    """One family of types, as a plugin contributes it.

    ``claims`` is called per data type (a domain after its base). ``build`` returns the mapping, or None to
    leave the column out. The spec with the lowest ``order`` is asked first; the built-in types use 100.
    ``samples`` fill the reference page.
    """

    name: str
    summary: str
    claims: "Callable[[DataType], bool]"
    build: "Callable[[Column, TypeMapper], ColumnMapping | None]"
    examples: tuple[str, ...] = field(default=())
    order: int = 50
    samples: "tuple[TypeSample, ...]" = ()


# Build a type from one function that parses its text.


def simple_type(
    name: str,
    *,
    summary: str,
    claims: Callable[[DataType], bool],
    schema: Schema,
    parse: Callable[[str], object],
    zero: object,
    arrow: "Callable[[], pa.DataType]",
    samples: Sequence[TypeSample] = (),
    order: int = 50,
) -> TypeSpec:
    """Return the spec of a type, built from ``parse``.

    ``parse`` takes PostgreSQL's text of a value and returns its Connect value, of the shape of
    ``schema``. `pyarrow.array` must accept the same value for the type that ``arrow`` returns.
    ``parse`` raises ValueError for text of another type.

    ``zero`` is the Connect value for NULL in a required field. A type whose forms must be fast, or
    differ in shape, builds a `ValueForm` instead.
    """

    def to_json(text: str) -> str:
        return value_json(schema, parse(text))

    form = converted(name, arrow, parse)

    def build(column: Column, mapper: TypeMapper) -> ColumnMapping:
        return column_mapping(
            column,
            mapper.options,
            ValueForm(
                schema=schema,
                to_json=to_json,
                to_connect=parse,
                zero=zero,
                default=default_value(column.default, "", parse),
                arrow=form,
            ),
        )

    return TypeSpec(
        name=name,
        summary=summary,
        claims=claims,
        build=build,
        order=order,
        samples=tuple(samples),
        examples=tuple(sample.declaration for sample in samples),
    )
