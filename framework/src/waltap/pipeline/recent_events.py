"""The newest of what people ask for first: failures with their remedies, and changes of tables."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from waltap.decode.difference import difference
from waltap.decode.relation import Relation
from waltap.hookspecs import hookimpl
from waltap.pipeline.status import RecentFailure, SchemaChange

__all__ = ["RecentEvents"]

KEPT: Final = 20

JOINED: Final = {
    "joined": "joined; nothing is missing",
    "snapshot": "joined; an incremental snapshot reads its rows",
    "incomplete": "joined; rows from before are missing",
    "created": "created; captured from then on",
    "uncaptured": "not captured before the next start",
    "interrupted": "the server streams no more of it, or not all",
}


class RecentEvents:
    """An observer of one run. What it has is replaced, never changed, so that any thread may read."""

    def __init__(self, pipeline: str, now_ms: Callable[[], int]) -> None:
        self._pipeline, self._now_ms = pipeline, now_ms
        self.failures: tuple[RecentFailure, ...] = ()
        self.schema_changes: tuple[SchemaChange, ...] = ()

    @hookimpl
    def on_failure(self, pipeline: str, error: Exception, retried: bool) -> None:
        """Keep it; one that was the last already is counted."""
        if pipeline != self._pipeline:
            return
        found, others = RecentFailure.of(error, self._now_ms(), retried=retried), self.failures
        if others and (others[0].code, others[0].problem) == (found.code, found.problem):
            found, others = replace(found, times=others[0].times + 1), others[1:]
        self.failures = (found, *others)[:KEPT]

    @hookimpl
    def on_schema_change(self, pipeline: str, old: Relation | None, new: Relation) -> None:
        """Keep what is different of a relation that was known."""
        if old is not None and pipeline == self._pipeline:
            for each in difference(old, new):
                self._changed(new.name, each)

    @hookimpl
    def on_new_table(self, pipeline: str, table: str, event: str) -> None:
        """Keep that a table is new."""
        if pipeline == self._pipeline:
            self._changed(table, JOINED.get(event, event))

    def _changed(self, table: str, what: str) -> None:
        made = SchemaChange(at_ms=self._now_ms(), table=table, what=what)
        self.schema_changes = (made, *self.schema_changes)[:KEPT]
