"""Where the dead letters of a pipeline are kept, counted and told of: one for all of its sinks."""

import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from waltap.clock import Clock
from waltap.dead_letters.bisect import Part
from waltap.dead_letters.change_form import ChangeForm
from waltap.dead_letters.copy import LettersCopied
from waltap.dead_letters.dead_letter import DeadLetter
from waltap.dead_letters.handling import FailureHandling
from waltap.dead_letters.store import LetterStore
from waltap.decode.relation import Relation
from waltap.errors import PluginError, RecordError, WaltapError
from waltap.format.format import Format

__all__ = ["DEAD_LETTER", "DeadLetterQueue", "EventCounters"]

log = logging.getLogger(__name__)

DEAD_LETTER: Final = "Dead Letter"
"""Aggregate type of notifications."""

TOLD_EVERY_S: Final = 10.0
"""Warnings and notifications come at most so often; each says how many events it stands for."""


class EventCounters(Protocol):
    """What counts: `Counts` of a run."""

    dead_letters: int
    left_out: int


class DeadLetterQueue:
    """Keeps letters, and tells of events that were left out.

    ``describe`` completes a relation from the catalogue, so that a letter can be replayed without it;
    ``form`` gives what writes the event for people. ``copy`` takes letters elsewhere, too, and returns
    when they are durable there. ``counted`` and ``notify`` are those of the run, once there is one.
    """

    def __init__(
        self,
        store: LetterStore,
        clock: Clock,
        *,
        describe: Callable[[Relation], Relation],
        form: Callable[[], Format | None],
        copy: LettersCopied | None = None,
    ) -> None:
        self.store, self._clock = store, clock
        self._describe, self._form, self._copy = describe, form, copy
        self.counted: EventCounters | None = None
        self.notify: Callable[..., None] | None = None
        self._next: dict[FailureHandling, float] = {}
        self._untold: dict[FailureHandling, int] = {}

    def now_ms(self) -> int:
        """Return the time of day."""
        return self._clock.time_ns() // 1_000_000

    def described(self, form: ChangeForm) -> ChangeForm:
        """Return ``form`` with its tables as the catalogue completes them."""
        try:
            relations = [self._describe(relation) for relation in form.relations]
        except PluginError:  # nobody here knows such tables: their events were made without it, too
            return form
        return msgspec.structs.replace(form, relations=relations)

    def envelope(self, piece: Part) -> dict[str, Any] | None:
        """Return the event as JSON for people, None where it cannot be written so."""
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

    def keep(self, letters: list[DeadLetter]) -> None:
        """Make letters durable. Raises: DeadLettersUnusable; what the copy's sink raises."""
        kept = self.store.put(letters)
        if self._copy is not None:
            self._copy(kept)

    def close(self) -> None:
        """Let go of the sink that gets copies; may be called twice."""
        if self._copy is not None:
            self._copy.close()

    def left_out(
        self, handling: FailureHandling, sink: str, place: str, reason: WaltapError
    ) -> None:
        """Count an event that was left out, and tell of it, not too often."""
        if self.counted is not None:
            self.counted.left_out += 1
            self.counted.dead_letters += handling is FailureHandling.DEAD_LETTER
        now = self._clock.monotonic()
        count = self._untold[handling] = self._untold.get(handling, 0) + 1
        if now < self._next.get(handling, 0.0):
            return
        self._next[handling], self._untold[handling] = now + TOLD_EVERY_S, 0
        what = "became a dead letter" if handling is FailureHandling.DEAD_LETTER else "was left out"
        if handling is not FailureHandling.SKIP:
            log.warning(
                "an event %s: %s: %s %s%s",
                what, place, reason.code, reason.problem,
                f" ({count} since the last such line)" if count > 1 else "",
            )  # fmt: skip
        if handling is FailureHandling.DEAD_LETTER and self.notify is not None:
            self.notify(
                DEAD_LETTER,
                "WRITTEN",
                sink=sink,
                position=place,
                code=reason.code,
                reason=reason.problem,
                count=str(count),
            )
