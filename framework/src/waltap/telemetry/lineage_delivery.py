"""What OpenLineage is still to be told of a run, and the thread that tells it.

Nothing here grows with the length of an outage: a run begins once and ends once, and what happens between
waits as one event with the last shape of each table that is new since the last one that arrived.
"""

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Self

from waltap.decode.relation import Relation

__all__ = ["RUNNING", "LineageEvent", "LineageSender"]

log = logging.getLogger(__name__)

RUNNING: Final = "RUNNING"
END_S: Final = 5.0
"""How long the end of a run waits for what is still to be sent."""
RETRY_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageEvent:
    """What an event is about: START, RUNNING, COMPLETE or FAIL, when it was, and facets of the run."""

    kind: str
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat())
    facets: Mapping[str, Any] = field(default_factory=dict)


class LineageSender:
    """Sends happenings in their order, each until it arrives. ``send`` gets one, with the tables that are
    new or have another shape; what it raises is tried again after ``retry_s``."""

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
        """What is on its way with the shapes of before: it tells nothing of what comes now."""

        self._shapes: dict[str, Relation] = {}
        self._over = self._away = False
        self._thread = threading.Thread(target=self._run, name="waltap-lineage", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_details: object) -> None:
        """Send what there is, once, and end."""
        with self._changed:
            self._over = True
            self._changed.notify()
        self._thread.join(END_S)
        if left := len(self.waiting):
            log.warning("OpenLineage: %d events of this run were not delivered", left)

    @property
    def waiting(self) -> Collection[LineageEvent]:
        """Return what has not arrived, the oldest first."""
        with self._changed:
            on_its_way = () if self._sending is None else (self._sending,)
            return (*on_its_way, *self._waiting)

    def shape(self, relation: Relation) -> None:
        """Have the next event name a table."""
        with self._changed:
            self._shapes[relation.name] = relation

    def put(self, happening: LineageEvent) -> None:
        """Have it sent; one that is RUNNING is the same as another that waits."""
        with self._changed:
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
                if shapes or happening.kind != RUNNING:
                    self._send(happening, shapes.values())
            except Exception as error:  # noqa: BLE001 - whatever a transport raises
                self._failed(error, happening, shapes)
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
            if happening.kind != RUNNING or not self._runs_wait():
                self._waiting.insert(0, happening)
            self._shapes = {**shapes, **self._shapes}
            if not self._over:
                self._changed.wait(self._retry_s)
