"""A family of types, as a plugin contributes it.

Every command reads the specs of all plugins, so this module imports no mapping.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
