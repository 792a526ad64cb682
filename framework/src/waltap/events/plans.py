"""The plans of all relations that a pipeline has met, with what a consumer compiled of each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from waltap.decode.relation import Relation
from waltap.events.plan import EventContext, EventPlan

__all__ = ["EventPlans"]

VERSIONS_KEPT = 4
"""How many versions of one relation stay compiled: snapshot and stream may each have their own."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _PlannedVersion(Generic[T]):
    """A relation as it came, as the catalogue completed it, and what was made of it."""

    seen: Relation
    described: Relation
    made: T | None


class EventPlans(Generic[T]):
    """``compiled`` is what rendering looks into: relation → what ``build`` made of its plan, None for one
    that is not captured; one that is not there goes to `compile`.
    """

    def __init__(self, context: EventContext, build: Callable[[EventPlan], T]) -> None:
        self.compiled: dict[Relation, T | None] = {}
        self._context, self._build = context, build
        self._versions: dict[int, list[_PlannedVersion[T]]] = {}

    def of(self, relation: Relation) -> T | None:
        """Return what was made of ``relation``, now or before."""
        try:
            return self.compiled[relation]
        except KeyError:
            return self.compile(relation)

    def compile(self, relation: Relation) -> T | None:
        """Compile ``relation``, seen for the first time; None when it is not captured.

        A relation that the server announced again is another object; where the catalogue says
        nothing new about it, what was made of it stays the same.
        """
        made: T | None = None
        described = relation
        capture = self._context.capture
        versions = self._versions.setdefault(relation.oid, [])
        if capture is None or capture.captures(relation.schema, relation.table):
            described = self._context.describe(relation)
            for known in versions:
                same = known.described.same_shape(described) and known.seen.topic == relation.topic
                if known.made is not None and same:
                    made = known.made
                    break
            else:
                made = self.build(relation, described)
        versions.append(_PlannedVersion(relation, described, made))
        if len(versions) > VERSIONS_KEPT:
            del self.compiled[versions.pop(0).seen]
        self.compiled[relation] = made
        return made

    def build(self, relation: Relation, described: Relation) -> T:
        """Return what is made of ``relation`` when it is ``described`` so; nothing is kept."""
        return self._build(EventPlan(relation, described, self._context))

    def described(self, relation: Relation) -> Relation | None:
        """Return how ``relation`` was described; None when it is not kept any more."""
        versions = self._versions.get(relation.oid, ())
        return next((version.described for version in versions if version.seen is relation), None)

    def replace(self, relation: Relation, described: Relation, made: T) -> None:
        """Use ``made`` for ``relation`` from now on."""
        versions = self._versions[relation.oid]
        at = next(n for n, version in enumerate(versions) if version.seen is relation)
        versions[at] = _PlannedVersion(relation, described, made)
        self.compiled[relation] = made

    def made(self, oid: int) -> list[T]:
        """Return what was made of the versions of a relation that are kept."""
        return [each.made for each in self._versions.get(oid, ()) if each.made is not None]

    def forget(self, oid: int) -> None:
        """Drop the versions of a relation that is gone."""
        for version in self._versions.pop(oid, ()):
            self.compiled.pop(version.seen, None)
