"""Store, count and report the dead letters of a pipeline."""

import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from waltap.changes.decode.relation import Relation
from waltap.changes.events.event import Record
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import Batch, Part
from waltap.clock import Clock
from waltap.encoders.format.format import Format
from waltap.errors import PluginError, RecordError, SinkError, WaltapError
from waltap.ports.sink.refusal import RecordsRefused, leave_out
from waltap.ports.sink.sink import Sink
from waltap.services.dead_letters.dead_letter import ChangeForm, DeadLetter, FailureHandling
from waltap.services.dead_letters.store import DeadLetterStore
from waltap.services.monitor.counts import RunCounters

log = logging.getLogger(__name__)


class DeadLetterCopies:
    """Write dead letters to a topic of a sink.

    The sink opens with the first letter.
    """

    def __init__(self, make: Callable[[], Sink], topic: str) -> None:
        self._make, self._topic = make, topic
        self._sink: Sink | None = None

    def __call__(self, dead_letters: list[DeadLetter]) -> None:
        """Write dead letters durably, without the server's values.

        Raises: SinkError.
        """
        # `as_dict` leaves out the change, which has no masks
        records = [
            Record(self._topic, msgspec.json.encode(each.id), msgspec.json.encode(each.as_dict()))
            for each in dead_letters
        ]
        batch = Batch(parts=[], position=Position(0), events=len(records), records=records)
        try:
            if self._sink is None:
                self._sink = self._make()
                if not self._sink.capabilities.records:
                    raise SinkError("[dead_letters] names a sink that takes no records")  # noqa: TRY301
                self._sink.open()
            self._write(self._sink, batch)
            self._sink.flush()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        sink, self._sink = self._sink, None
        try:
            if sink is not None:
                sink.close()
        except SinkError as error:  # each copy is durable, and an earlier error counts more
            log.warning("the sink of dead letters: %s", error)

    @staticmethod
    def _write(sink: Sink, batch: Batch) -> None:
        while batch.records:
            try:
                sink.write(batch)
            except RecordsRefused as error:
                # the pipeline's own file has the dead letter already
                log.warning("a dead letter is not copied: %s", error.problem)
                leave_out(batch, error.refused)
            else:
                return


DEAD_LETTER: Final = "Dead Letter"
"""Aggregate type of notifications."""

REPORT_EVERY_S: Final = 10.0
"""Least seconds between two warnings or notifications; each has the number of its events."""


class DeadLetterQueue:
    """Keep the dead letters of all sinks and report skipped events.

    ``describe`` completes a relation from the catalog, so that a dead letter can be redelivered without
    it. ``form`` returns the format that renders events for people. ``copy`` also writes the dead letters
    to a sink and returns when they are durable there. A run sets its counters and channels by `report_to`.
    """

    def __init__(
        self,
        store: DeadLetterStore,
        clock: Clock,
        *,
        describe: Callable[[Relation], Relation],
        form: Callable[[], Format | None],
        copy: DeadLetterCopies | None = None,
    ) -> None:
        self.store, self._clock = store, clock
        self._describe, self._form, self._copy = describe, form, copy
        self._counted: RunCounters | None = None
        self._notify: Callable[..., None] | None = None
        self._next: dict[FailureHandling, float] = {}
        self._unreported: dict[FailureHandling, int] = {}

    def now_ms(self) -> int:
        return self._clock.time_ns() // 1_000_000

    def described(self, form: ChangeForm) -> ChangeForm:
        """Return a form with relations completed from the catalog."""
        try:
            relations = [self._describe(relation) for relation in form.relations]
        except PluginError:  # the connector has no such tables: their events did without it, too
            return form
        return msgspec.structs.replace(form, relations=relations)

    def envelope(self, piece: Part) -> dict[str, Any] | None:
        """Return the event as JSON for people.

        None: the format cannot render the event.
        """
        form = self._form()
        if form is None:
            return None
        try:
            records = form.render([piece], self._clock.time_ns())
        except (RecordError, PluginError):
            return None
        for record in records:
            if record.value is not None:
                return {
                    "topic": record.topic,
                    "key": None if record.key is None else msgspec.json.decode(record.key),
                    "value": msgspec.json.decode(record.value),
                }
        return None

    def keep(self, dead_letters: list[DeadLetter]) -> None:
        """Store dead letters durably.

        Raises: DeadLettersUnusable; SinkError of the sink for copies.
        """
        # first the pipeline's own file: the copy gets the dead letters with their numbers of attempts
        stored = self.store.put(dead_letters)
        if self._copy is not None:
            self._copy(stored)

    def report_to(self, counted: RunCounters, notify: Callable[..., None]) -> None:
        """Count skipped events in ``counted``, and send notifications by ``notify``."""
        self._counted, self._notify = counted, notify

    def close(self) -> None:
        """Close the sink for copies; may be called twice."""
        if self._copy is not None:
            self._copy.close()

    def left_out(
        self, handling: FailureHandling, sink: str, location: str, reason: WaltapError
    ) -> None:
        """Count a skipped event and report it at a limited rate."""
        if self._counted is not None:
            self._counted.left_out += 1
            self._counted.dead_letters += handling is FailureHandling.DEAD_LETTER
        now = self._clock.monotonic()
        count = self._unreported[handling] = self._unreported.get(handling, 0) + 1
        if now < self._next.get(handling, 0.0):
            return
        self._next[handling], self._unreported[handling] = now + REPORT_EVERY_S, 0
        what = "became a dead letter" if handling is FailureHandling.DEAD_LETTER else "was left out"
        if handling is not FailureHandling.SKIP:
            log.warning(
                "an event %s: %s: %s %s%s",
                what, location, reason.code, reason.problem,
                f" ({count} since the last such line)" if count > 1 else "",
            )  # fmt: skip
        if handling is FailureHandling.DEAD_LETTER and self._notify is not None:
            self._notify(
                DEAD_LETTER,
                "WRITTEN",
                sink=sink,
                position=location,
                code=reason.code,
                reason=reason.problem,
                count=str(count),
            )
