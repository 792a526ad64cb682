"""The PostgreSQL type table: each type's form in Connect, JSON and Arrow.

There is one module per family; the plugin registers `TYPE_SPECS`.
`waltap.changes.mapping.type_mapping.TypeOptions` selects the rows of the table.
``docs/reference/types.md`` is printed from it.
"""

from dataclasses import replace

from waltap.ports.specs import TypeSpec
from waltap_postgres.types.array import ARRAY_SPECS
from waltap_postgres.types.binary import BINARY_SPECS
from waltap_postgres.types.builtin import SAMPLES
from waltap_postgres.types.enum import ENUM_SPECS
from waltap_postgres.types.geometry import GEOMETRY_SPECS
from waltap_postgres.types.hstore import HSTORE_SPECS
from waltap_postgres.types.interval import INTERVAL_SPECS
from waltap_postgres.types.number import NUMBER_SPECS
from waltap_postgres.types.numeric import NUMERIC_SPECS
from waltap_postgres.types.temporal import TEMPORAL_SPECS
from waltap_postgres.types.text import TEXT_SPECS
from waltap_postgres.types.user_defined import UNKNOWN_SPECS

__all__ = ["TYPE_SPECS"]

_SPECS: tuple[TypeSpec, ...] = (
    *NUMBER_SPECS,
    *NUMERIC_SPECS,
    *TEXT_SPECS,
    *BINARY_SPECS,
    *TEMPORAL_SPECS,
    *INTERVAL_SPECS,
    *ENUM_SPECS,
    *ARRAY_SPECS,
    *GEOMETRY_SPECS,
    *HSTORE_SPECS,
    *UNKNOWN_SPECS,
)

# Samples are in one table, so they join their specs here.
TYPE_SPECS: tuple[TypeSpec, ...] = tuple(
    replace(
        spec,
        samples=SAMPLES[spec.name],
        examples=tuple(sample.declaration for sample in SAMPLES[spec.name]),
    )
    if spec.name in SAMPLES
    else spec
    for spec in _SPECS
)
