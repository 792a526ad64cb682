"""Isolate the events that a sink or its format refuses.

A batch without failures costs one call and no work per row. A failed batch is tried again in pieces
(`bisect`), in order, before any later batch. The policy decides about each refused event.
"""

from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from waltap.changes.events.event import Record
from waltap.changes.transactions.order import OrderSavepoint, TransactionOrder
from waltap.changes.transactions.transaction import (
    Batch,
    Part,
    SnapshotRows,
    TransactionPart,
    events_in,
)
from waltap.errors import RecordError, WaltapError
from waltap.ports.sink.refusal import (
    BatchLocation,
    RecordsRefused,
    RefusedEvent,
    alone,
    every_event,
    failing,
    leave_out,
    locations_of,
    without,
)
from waltap.services.dead_letters.dead_letter import (
    ChangeForm,
    DeadLetter,
    EventLocation,
    FailureHandling,
    FailurePolicy,
    change_form,
    dead_letter_of,
    row_digest,
    row_form,
)
from waltap.services.dead_letters.queue import DeadLetterQueue

Make = Callable[[Batch], Batch]


class PoisonEventHandler:
    """Apply the failure policy of one sink. Single-threaded.

    ``sink`` is the sink's name, "" for the only sink. ``order`` holds the counters of its format:
    they are reset before a second rendering, so that every event counts once.
    """

    def __init__(
        self,
        policy: FailurePolicy,
        sink: str,
        order: TransactionOrder,
        dead_letters: DeadLetterQueue,
    ) -> None:
        self._policy, self._sink = policy, sink
        self._order, self._dead_letters = order, dead_letters
        self._rendered: _RenderedBatch | None = None
        # Refused rows by the LSN of their snapshot and their digest: without a key, equal ones are many.
        self._rows: Counter[tuple[int, str]] = Counter()

    def made_without(self, given: Batch, make: Make, savepoint: OrderSavepoint) -> Batch:
        """Return the batch that ``make`` renders, without failing events.

        ``make`` has just failed; ``savepoint`` are the counters before it. Raises: its error if the
        policy is to stop; DeadLettersUnusable.
        """
        self._order.back_to(savepoint)

        def attempt(part: Part) -> None:
            self._order.back_to(savepoint)
            make(_of(given, [part]))

        found = failing(given.parts, attempt, first_only=not self._policy.tolerant)
        self._order.back_to(savepoint)
        self._handle([self._case(given, where, error) for where, error in found.items()])
        remaining = without(given.parts, found)
        return make(
            msgspec.structs.replace(given, parts=remaining, events=given.events - len(found))
        )

    def refused(self, given: Batch, own: Batch, make: Make, error: RecordsRefused) -> None:
        """Remove from ``own`` the events that the sink refused.

        ``make`` rendered ``own`` from ``given``. Raises: the error of the first refusal if the policy
        is to stop; DeadLettersUnusable; RecordsRefused again if it names no event of the batch.
        """
        rendered = self._rendered
        if rendered is None or rendered.own is not own:
            rendered = self._rendered = _RenderedBatch.of(given, own, make)
        if own.records is not None:
            refused = {
                rendered.remaining[each.index]: each
                for each in error.refused
                if 0 <= each.index < len(rendered.remaining)
            }
            cases = self._cases_of_records(rendered, error, refused)
        else:
            numbers = dict(zip(every_event(own.parts), rendered.remaining, strict=True))
            found = locations_of(own.parts, error.refused).items()
            refused = {numbers[where]: each for where, each in found}
            cases = self._cases_of_changes(rendered, error, refused)
        if not cases:
            raise error
        self._handle(cases)
        leave_out(own, error.refused)
        rendered.remaining = [number for number in rendered.remaining if number not in refused]

    # --- which events -----------------------------------------------------------------------------

    def _cases_of_records(
        self, batch: "_RenderedBatch", error: RecordsRefused, refused: "_Refused"
    ) -> "list[_PoisonEvent]":
        given, records = batch.given, batch.whole.records or ()
        self._find_origins(batch, max(refused, default=-1))
        cases = []
        for index, each in sorted(refused.items()):
            record = records[index]
            where, nth = batch.origins.get(index, (None, index))
            if where is None:
                # a record of no event, such as the BEGIN of a transaction
                location = EventLocation(
                    commit_lsn=given.position.commit_lsn or given.position.end_lsn,
                    index=given.position.index,
                    partition=given.partition,
                    record=nth,
                )
                cases.append(_PoisonEvent(error, each.error, location, None, record, None))
            else:
                cases.append(self._case(given, where, error, each.error, record, nth))
        return cases

    def _find_origins(self, batch: "_RenderedBatch", last: int) -> None:
        """Find the event of each record up to ``last``.

        With it comes the record's index among the event's records, None for an only record. Records
        of no event, such as the BEGIN of a transaction, are missing.
        """
        # an event that is rendered alone gives the same records in the same order
        records, savepoint = batch.whole.records or (), self._order.savepoint()
        while batch.searched <= last and (where := next(batch.events, None)) is not None:
            made = self._made_alone(batch.given, where, batch.make)
            at = batch.searched
            of_event = made.records if made is not None and made.records is not None else ()
            for nth, record in enumerate(of_event):
                own = (record.topic, record.key)
                alike = (n for n, r in enumerate(records[at:], at) if (r.topic, r.key) == own)
                following = next(alike, None)
                if following is None:
                    break
                batch.origins[following] = where, nth if len(of_event) > 1 else None
                at = batch.searched = following + 1
        self._order.back_to(savepoint)

    def _made_alone(self, given: Batch, where: BatchLocation, make: Make) -> Batch | None:
        part = alone(given.parts[where.part], where.at, where.at + 1)
        try:
            return make(_of(given, [part]))
        except RecordError:
            return None

    def _cases_of_changes(
        self, batch: "_RenderedBatch", error: RecordsRefused, refused: "_Refused"
    ) -> "list[_PoisonEvent]":
        given, whole = batch.given, batch.whole
        locations = list(every_event(whole.parts))
        origins = self._origins_of_events(given, whole, batch.make)
        return [
            self._case(given, origins[where], error, each.error)
            if where in origins
            else self._case(whole, where, error, each.error)
            for where, each in ((locations[number], each) for number, each in refused.items())
        ]

    def _origins_of_events(
        self, given: Batch, own: Batch, make: Make
    ) -> dict[BatchLocation, BatchLocation]:
        # transforms keep the order, but may drop events or replace them by others
        theirs = list(every_event(own.parts))
        ours = list(every_event(given.parts))
        if len(theirs) == len(ours):
            return dict(zip(theirs, ours, strict=True))
        matched = []
        for where in ours:
            made = self._made_alone(given, where, make)
            matched += [where] * (0 if made is None else events_in(made.parts))
        return dict(zip(theirs, matched, strict=True)) if len(matched) == len(theirs) else {}

    def _case(
        self,
        given: Batch,
        where: BatchLocation,
        error: RecordError,
        reason: WaltapError | None = None,
        record: Record | None = None,
        nth: int | None = None,
    ) -> "_PoisonEvent":
        part = given.parts[where.part]
        if isinstance(part, TransactionPart):
            change = part.changes[where.at]
            form = change_form(change, part)
            location = EventLocation(
                commit_lsn=part.commit_lsn or change.lsn,
                index=part.numbers()[where.at],
                partition=given.partition,
                record=nth,
            )
        else:
            assert isinstance(part, SnapshotRows), "a heartbeat has no events"
            form, lsn = row_form(part, where.at), part.lsn or 0
            digest, equal = row_digest(form), 0
            if not part.relation.primary_key:
                equal = self._rows[lsn, digest]
                self._rows[lsn, digest] += 1
            location = EventLocation(
                commit_lsn=lsn, index=equal, partition=given.partition, row=digest, record=nth
            )
        piece = alone(part, where.at, where.at + 1)
        return _PoisonEvent(error, reason or error, location, form, record, piece)

    # --- what becomes of them -----------------------------------------------------------------------

    def _handle(self, cases: "list[_PoisonEvent]") -> None:
        """Handle refused events as the policy says.

        Raises: the error of the first event that must stop the pipeline.
        """
        handled = [(self._policy.of_error(case.error), case) for case in cases]
        # before anything is kept: the events come again after a stop
        for handling, case in handled:
            if handling is FailureHandling.FAIL:
                raise case.named() from case.error
        dead_letters = [
            self._dead_letter(case)
            for handling, case in handled
            if handling is FailureHandling.DEAD_LETTER
        ]
        if dead_letters:
            self._dead_letters.keep(dead_letters)
        for handling, case in handled:
            self._dead_letters.left_out(handling, self._sink, str(case.location), case.reason)

    def _dead_letter(self, case: "_PoisonEvent") -> DeadLetter:
        return dead_letter_of(
            self._sink,
            case.location,
            case.reason,
            self._dead_letters.now_ms(),
            change=None if case.form is None else self._dead_letters.described(case.form),
            record=case.record,
            event=None if case.piece is None else self._dead_letters.envelope(case.piece),
        )


_Refused = dict[int, RefusedEvent]
"""Number in the rendered batch → refusal."""

_Origins = dict[int, tuple[BatchLocation, int | None]]
"""Number of a record → its event, as `PoisonEventHandler._find_origins` finds it."""


class _RenderedBatch(msgspec.Struct):
    """A batch that a sink refuses in part, perhaps one event after the other.

    Without it a second refusal would be taken for one of the first events with the same key.
    """

    given: Batch
    make: Make
    # without the refused events
    own: Batch
    # as rendered
    whole: Batch
    # the numbers in `whole` of the records, or events, of `own`
    remaining: list[int]
    # the events of `given` whose records were not looked for
    events: Iterator[BatchLocation]
    # of the records up to the last refused one
    origins: _Origins = {}
    # the number of the first record after those
    searched: int = 0

    @classmethod
    def of(cls, given: Batch, own: Batch, make: Make) -> "_RenderedBatch":
        count = events_in(own.parts) if own.records is None else len(own.records)
        whole, events = msgspec.structs.replace(own), every_event(given.parts)
        return cls(given, make, own, whole, list(range(count)), events)


class _PoisonEvent(msgspec.Struct, frozen=True):
    """One undeliverable event."""

    # the raised error, by which the policy decides
    error: RecordError
    # the error of this event alone
    reason: WaltapError
    location: EventLocation
    form: ChangeForm | None
    # the refused record
    record: Record | None
    # a part with this event alone
    piece: Part | None

    def named(self) -> WaltapError:
        """Return the error that stops the run and names the event."""
        what = ""
        if self.form is not None:
            what = f"{self.form.op} of {self.form.table}, "
        elif self.record is not None:
            what = f"a record for {self.record.topic}, "
        context = f" ({what}{self.location})"
        if not self.reason.problem.endswith(context):
            self.reason.problem += context
        return self.reason


def _of(given: Batch, parts: list[Part]) -> Batch:
    return msgspec.structs.replace(given, parts=parts, events=events_in(parts))
