"""Queue OpenLineage events and send them in a thread.

The queue does not grow during an outage. A run starts once and ends once. Changes in between are
combined into one event with the last relation of each table that changed since the last delivery.
"""

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Self

from waltap.changes.decode.relation import Relation

__all__ = ["RUNNING", "LineageEvent", "LineageSender"]

log = logging.getLogger(__name__)

RUNNING: Final = "RUNNING"
END_S: Final = 5.0
"""How long the end of a run waits for the remaining events."""
RETRY_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageEvent:
    """One event in the life of a run."""

    # START, RUNNING, COMPLETE or FAIL
    kind: str
    # time of the event, not of its delivery
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat())
    # of the run
    facets: Mapping[str, Any] = field(default_factory=dict)


class LineageSender:
    """Send events in order, each until it arrives.

    ``send`` gets an event and the tables that are new or changed. An event whose delivery failed is
    sent again after ``retry_s``.
    """

    def __init__(
        self,
        send: Callable[[LineageEvent, Collection[Relation]], None],
        *,
        retry_s: float = RETRY_S,
    ) -> None:
        self._send, self._retry_s = send, retry_s
        self._changed = threading.Condition()
        self._waiting: list[LineageEvent] = []
        self._sending: LineageEvent | None = None
        """The event in delivery; a table that changes now needs another event."""

        self._shapes: dict[str, Relation] = {}
        self._over = self._away = False
        self._thread = threading.Thread(target=self._run, name="waltap-lineage", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_details: object) -> None:
        """Send the waiting events once and stop."""
        with self._changed:
            self._over = True
            self._changed.notify()
        self._thread.join(END_S)
        if left := len(self.waiting):
            log.warning("OpenLineage: %d events of this run were not delivered", left)

    @property
    def waiting(self) -> Collection[LineageEvent]:
        """Return the undelivered events, the oldest first."""
        with self._changed:
            on_its_way = () if self._sending is None else (self._sending,)
            return (*on_its_way, *self._waiting)

    def shape(self, relation: Relation) -> None:
        """Add a table to the next event."""
        with self._changed:
            self._shapes[relation.name] = relation

    def put(self, happening: LineageEvent) -> None:
        """Queue an event for delivery."""
        with self._changed:
            # a RUNNING event that waits already will name all changed tables
            if happening.kind != RUNNING or not self._runs_wait():
                self._waiting.append(happening)
                self._changed.notify()

    def _runs_wait(self) -> bool:
        return any(each.kind == RUNNING for each in self._waiting)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._over:
                    self._changed.wait()
                if not self._waiting:
                    return
                last, happening = self._over, self._waiting.pop(0)
                self._sending = happening
                shapes, self._shapes = self._shapes, {}
            try:
                # a RUNNING event without tables has nothing to report
                if shapes or happening.kind != RUNNING:
                    self._send(happening, shapes.values())
            except Exception as error:  # noqa: BLE001 - whatever a transport raises
                self._failed(error, happening, shapes)
                # the end of the run waits for one try only
                if last:
                    return
            else:
                self._arrived()

    def _arrived(self) -> None:
        with self._changed:
            self._sending = None
        if self._away:
            self._away = False
            log.info("OpenLineage: events are delivered again")

    def _failed(
        self, error: Exception, happening: LineageEvent, shapes: Mapping[str, Relation]
    ) -> None:
        if not self._away:
            self._away = True
            log.warning(
                "OpenLineage: an event was not delivered, and is tried again: %s",
                type(error).__name__,
            )
        with self._changed:
            self._sending = None
            # a RUNNING event that waits takes over the tables of the failed one
            if happening.kind != RUNNING or not self._runs_wait():
                self._waiting.insert(0, happening)
            # newer relations replace those of the failed event
            self._shapes = {**shapes, **self._shapes}
            if not self._over:
                self._changed.wait(self._retry_s)
