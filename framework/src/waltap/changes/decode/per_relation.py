"""A stage's cache of one result per relation version."""

from collections.abc import Callable
from typing import Generic, TypeVar

from waltap.changes.decode.relation import Relation

__all__ = ["PerRelation"]

# Per relation: endless schema changes of one table must not grow the cache.
VERSIONS_KEPT = 8

T = TypeVar("T")


class PerRelation(Generic[T]):
    """Cache the result of ``make`` for each relation version.

    ``make`` runs again for a version that was dropped as one of too many.
    """

    __slots__ = ("_known", "_make", "_versions")

    def __init__(self, make: Callable[[Relation], T]) -> None:
        self._make = make
        self._known: dict[Relation, T] = {}
        self._versions: dict[int, list[Relation]] = {}

    def of(self, relation: Relation) -> T:
        """Return the result for ``relation``; make it where it is missing."""
        try:
            return self._known[relation]
        except KeyError:
            made = self._make(relation)
            self.put(relation, made)
            return made

    def get(self, relation: Relation) -> T | None:
        """Return the cached result for ``relation``, or None."""
        return self._known.get(relation)

    def put(self, relation: Relation, made: T) -> None:
        """Cache ``made`` for ``relation`` in place of an earlier result."""
        if relation not in self._known:
            versions = self._versions.setdefault(relation.oid, [])
            versions.append(relation)
            if len(versions) > VERSIONS_KEPT:
                # The oldest version is the least likely to have further rows.
                del self._known[versions.pop(0)]
        self._known[relation] = made

    def forget(self, oid: int) -> None:
        """Drop all versions of a relation that no longer exists."""
        for relation in self._versions.pop(oid, ()):
            del self._known[relation]

    def clear(self) -> None:
        """Drop everything."""
        self._known.clear()
        self._versions.clear()
