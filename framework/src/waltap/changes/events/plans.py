"""The compiled plans of a pipeline's relations, for one consumer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from waltap.changes.decode.relation import Relation
from waltap.changes.events.plan import EventContext, EventPlan

__all__ = ["EventPlans"]

# Of one relation: snapshot and stream may each have versions of their own.
VERSIONS_KEPT = 4

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _PlannedVersion(Generic[T]):
    """Hold a relation, its description, and the compiled result."""

    seen: Relation
    described: Relation
    made: T | None


class EventPlans(Generic[T]):
    """Cache the result of ``build`` for each relation's plan.

    Rendering looks into ``compiled``: relation → result, None for a relation that is not
    captured. A missing relation goes to `compile`.
    """

    def __init__(self, context: EventContext, build: Callable[[EventPlan], T]) -> None:
        self.compiled: dict[Relation, T | None] = {}
        self._context, self._build = context, build
        self._versions: dict[int, list[_PlannedVersion[T]]] = {}

    def of(self, relation: Relation) -> T | None:
        """Return the result for ``relation``, compiled if missing."""
        try:
            return self.compiled[relation]
        except KeyError:
            return self.compile(relation)

    def compile(self, relation: Relation) -> T | None:
        """Compile ``relation``, seen for the first time.

        The result is None when the relation is not captured.
        """
        made: T | None = None
        described = relation
        capture = self._context.capture
        versions = self._versions.setdefault(relation.oid, [])
        if capture is None or capture.captures(relation.schema, relation.table):
            described = self._context.describe(relation)
            for known in versions:
                # A repeated announcement is another object; without news in the catalogue the
                # result is reused.
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
        """Return the result for ``relation`` when it is ``described`` so.

        Nothing is cached.
        """
        return self._build(EventPlan(relation, described, self._context))

    def described(self, relation: Relation) -> Relation | None:
        """Return the cached description of ``relation``, or None."""
        versions = self._versions.get(relation.oid, ())
        return next((version.described for version in versions if version.seen is relation), None)

    def replace(self, relation: Relation, described: Relation, made: T) -> None:
        """Use ``made`` for ``relation`` from now on."""
        versions = self._versions[relation.oid]
        at = next(n for n, version in enumerate(versions) if version.seen is relation)
        versions[at] = _PlannedVersion(relation, described, made)
        self.compiled[relation] = made

    def made(self, oid: int) -> list[T]:
        """Return the cached results for the versions of a relation."""
        return [each.made for each in self._versions.get(oid, ()) if each.made is not None]

    def forget(self, oid: int) -> None:
        """Drop the versions of a relation that no longer exists."""
        for version in self._versions.pop(oid, ()):
            self.compiled.pop(version.seen, None)
