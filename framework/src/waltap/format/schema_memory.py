"""What transforms make of schemas, kept by the schema: there is one per relation version."""

from collections.abc import Callable
from typing import Generic, TypeVar

from waltap.mapping.connect_schema import Schema

__all__ = ["SchemaMemory"]

V = TypeVar("V")

KEPT = 1000


class SchemaMemory(Generic[V]):
    """Answers about schemas; ``make`` is called once for each schema object. Bounded: when it is full, all
    is forgotten, and made anew."""

    __slots__ = ("_known", "_make", "_most")

    def __init__(self, make: Callable[[Schema], V], *, most: int = KEPT) -> None:
        self._make, self._most = make, most
        self._known: dict[int, tuple[Schema, V]] = {}

    def of(self, schema: Schema) -> V:
        """Return what was made of ``schema``."""
        entry = self._known.get(id(schema))
        if entry is None:
            if len(self._known) >= self._most:
                self._known.clear()
            # the schema is kept with it, so that its id stays its own
            entry = self._known[id(schema)] = schema, self._make(schema)
        return entry[1]
