"""What a stage made of each relation version, until the relation is gone."""

from collections.abc import Callable
from typing import Generic, TypeVar

from waltap.decode.relation import Relation

__all__ = ["PerRelation"]

VERSIONS_KEPT = 8
"""Of one relation; a stream of ever new versions of it must not grow what is kept."""

T = TypeVar("T")


class PerRelation(Generic[T]):
    """Answers about relation versions; ``make`` is called once for each, unless it is one of many."""

    __slots__ = ("_known", "_make", "_versions")

    def __init__(self, make: Callable[[Relation], T]) -> None:
        self._make = make
        self._known: dict[Relation, T] = {}
        self._versions: dict[int, list[Relation]] = {}

    def of(self, relation: Relation) -> T:
        """Return what was made of ``relation``, now or before."""
        try:
            return self._known[relation]
        except KeyError:
            made = self._make(relation)
            self.put(relation, made)
            return made

    def get(self, relation: Relation) -> T | None:
        """Return what was made of ``relation`` before."""
        return self._known.get(relation)

    def put(self, relation: Relation, made: T) -> None:
        """Keep ``made`` for ``relation``, in the place of what was made of it before."""
        if relation not in self._known:
            versions = self._versions.setdefault(relation.oid, [])
            versions.append(relation)
            if len(versions) > VERSIONS_KEPT:
                del self._known[versions.pop(0)]
        self._known[relation] = made

    def forget(self, oid: int) -> None:
        """Drop the versions of a relation that is gone."""
        for relation in self._versions.pop(oid, ()):
            del self._known[relation]

    def clear(self) -> None:
        """Drop everything."""
        self._known.clear()
        self._versions.clear()
