"""The type registry, which finds a column's type spec."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from waltap.base.cache import BoundedDict
from waltap.base.import_rules import pa
from waltap.base.plugin_errors import usable
from waltap.changes.arrow.column import converted
from waltap.changes.decode.relation import Column, DataType, Relation, TypeKind, below_domains
from waltap.changes.mapping.connect_schema import Schema
from waltap.changes.mapping.conversion import ColumnConverter, conversion_mapping
from waltap.changes.mapping.json_schema import value_json
from waltap.changes.mapping.type_mapping import ColumnMapping, TypeMapper, TypeOptions, TypeSample
from waltap.changes.mapping.value_form import ValueForm, column_mapping, default_value


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


# Mappings kept. A database with more different columns only makes them again.
_CACHE_LIMIT = 512


class TypeRegistry(TypeMapper):
    """Map columns by the first spec that claims their type.

    Specs are asked by order, then by registration. Specs and options are fixed; a mapping is made
    once per different column and shared. For columns of relations (`of`) ``conversion`` comes
    before the specs; it must give the same object for the same column.
    """

    __slots__ = ("_conversion", "_mappings", "options", "specs")

    def __init__(
        self,
        specs: Iterable[TypeSpec],
        options: TypeOptions | None = None,
        conversion: ColumnConverter | None = None,
    ) -> None:
        self._conversion = conversion
        # In the order of asking.
        self.specs = tuple(sorted(specs, key=lambda spec: spec.order))
        self.options = options or TypeOptions()
        self._mappings = BoundedDict[Column, ColumnMapping | None](_CACHE_LIMIT)

    def column(self, column: Column) -> ColumnMapping | None:
        """Return the mapping of ``column``; None leaves an unknown type out.

        A column that the catalogue did not describe is looked up by its type OID alone.
        """
        try:
            return self._mappings[column]
        except KeyError:
            resolved = _resolved(column)
            assert resolved.data_type is not None
            spec = self.spec(resolved.data_type)
            mapping = None
            if spec is not None:
                made = spec.build(resolved, self)
                mapping = usable(made, (ColumnMapping, type(None)), spec.build)
            self._mappings[column] = mapping
            return mapping

    def of(self, relation: Relation, column: Column) -> ColumnMapping | None:
        """Return the mapping of a column of a described relation.

        Raises as the conversion does.
        """
        if self._conversion is not None:
            conversion = self._conversion(relation, column)
            if conversion is not None:
                return conversion_mapping(conversion, self.options)
        return self.column(column)

    def spec(self, data_type: DataType) -> TypeSpec | None:
        """Return the spec that claims ``data_type``, or None.

        For a domain the caller passes its base.
        """
        return next((spec for spec in self.specs if spec.claims(data_type)), None)


def _resolved(column: Column) -> Column:
    """Return ``column`` with its base data type."""
    data_type = column.data_type or DataType(oid=column.type_oid, schema="", name="")
    if data_type.kind is not TypeKind.DOMAIN:
        return msgspec.structs.replace(column, data_type=data_type)
    data_type, typmod = below_domains(data_type, column.typmod)
    return msgspec.structs.replace(
        # A column of a domain type has no schema default in Debezium, whose table of defaults
        # goes by the name of the column's own type.
        column,
        data_type=data_type,
        type_oid=data_type.oid,
        typmod=typmod,
        default=None,
    )
