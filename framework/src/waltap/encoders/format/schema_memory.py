"""Cache the schemas that transforms make of other schemas.

There is one schema object per relation version.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from waltap.changes.mapping.connect_schema import Schema

__all__ = ["SchemaMemory"]

V = TypeVar("V")

KEPT = 1000


class SchemaMemory(Generic[V]):
    """Call ``make`` once for each schema object.

    A full cache is cleared.
    """

    __slots__ = ("_known", "_make", "_most")

    def __init__(self, make: Callable[[Schema], V], *, most: int = KEPT) -> None:
        self._make, self._most = make, most
        self._known: dict[int, tuple[Schema, V]] = {}

    def of(self, schema: Schema) -> V:
        """Return the result of ``make`` for ``schema``."""
        entry = self._known.get(id(schema))
        if entry is None:
            if len(self._known) >= self._most:
                self._known.clear()
            # The entry keeps the schema alive, so that no other object gets its id.
            entry = self._known[id(schema)] = schema, self._make(schema)
        return entry[1]
