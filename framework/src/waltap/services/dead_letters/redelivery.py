"""Redeliver dead letters while the pipeline delivers nothing.

The sink gets the refused record again. A change that could not be rendered then is rendered now by
transforms and format. The position of the pipeline does not change.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from waltap.changes.events.record import Record
from waltap.changes.transactions.position import Position, Positions
from waltap.changes.transactions.transaction import Batch, SnapshotRows, TransactionPart
from waltap.errors import RecordError, WaltapError
from waltap.ports.sink.refusal import RecordsRefused
from waltap.ports.sink.roles import RedeliveryAwareSink
from waltap.ports.sink.sink import Sink
from waltap.services.dead_letters.change_form import of_form
from waltap.services.dead_letters.dead_letter import DeadLetter, record_of
from waltap.services.dead_letters.store import DeadLetterStore

MARK: Final = "waltap-dead-letter"
"""Header of a redelivered record: the dead letter's id, by which a consumer recognizes a duplicate."""

AT_A_TIME: Final = 100
"""Dead letters between two flushes: a killed redelivery repeats at most this number."""


@dataclass(frozen=True, slots=True)
class RedeliveryResult:
    """The outcome of one redelivered letter."""

    dead_letter: DeadLetter
    # the second refusal; None: the sink has the dead letter
    error: WaltapError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Redelivery:
    """Redeliver dead letters to one sink.

    Each batch names the dead letters that the sink got since the last flush (`Batch.redelivers`). A sink
    that stores these marks with the data can report, after a kill, which dead letters it has.
    """

    store: DeadLetterStore
    # not open yet
    sink: Sink
    # applies transforms and format to a batch of changes
    make: Callable[[Batch], Batch]
    # the pipeline's positions
    stored: Positions
    now_ms: Callable[[], int]

    def run(self, dead_letters: Sequence[DeadLetter]) -> Iterator[RedeliveryResult]:
        """Deliver dead letters in order and yield each durable outcome.

        Raises: SinkError for a failure that no dead letter causes. Dead letters that were yielded before
        stay delivered.
        """
        try:
            held = Positions.of(self.sink.open(), next(iter(self.stored), ""))
            there = set[str]()
            if isinstance(self.sink, RedeliveryAwareSink):
                there.update(self.sink.redelivered())
            # a redelivery that was killed between flush and mark delivered these already
            had = [
                each for each in dead_letters if each.mark in there and each.redelivered_ms is None
            ]
            if had:
                self.store.mark(had, self.now_ms())
                yield from map(RedeliveryResult, had)
            known = {each.id for each in had}
            waiting = [each for each in dead_letters if each.id not in known]
            for first in range(0, len(waiting), AT_A_TIME):
                found: list[RedeliveryResult] = []
                given: tuple[str, ...] = ()
                for dead_letter in waiting[first : first + AT_A_TIME]:
                    error = self._refusal(dead_letter, held, (*given, dead_letter.mark))
                    given = given if error else (*given, dead_letter.mark)
                    found.append(RedeliveryResult(dead_letter, error))
                self.sink.flush()
                self.store.mark([e.dead_letter for e in found if e.error is None], self.now_ms())
                self.store.put([self._again(e) for e in found if e.error is not None])
                yield from found
        finally:
            self.sink.close()

    def _refusal(
        self, dead_letter: DeadLetter, held: Positions, marks: tuple[str, ...]
    ) -> WaltapError | None:
        """Write one dead letter and return its refusal, if any."""
        name = dead_letter.place.partition
        position = max(
            self.stored.get(name, Position(0)), held.get(name, self.stored.get(name, Position(0)))
        )
        try:
            batch = self._batch(dead_letter, position)
            batch.redelivers = marks
            self.sink.write(batch)
        except RecordsRefused as error:
            return error.refused[0].error
        except RecordError as error:
            return error
        return None

    def _batch(self, dead_letter: DeadLetter, position: Position) -> Batch:
        empty = Batch(parts=[], position=position, partition=dead_letter.place.partition, events=1)
        if dead_letter.record is not None:
            empty.records = [_marked(record_of(dead_letter.record), dead_letter)]
            return empty
        assert dead_letter.change is not None, "a dead letter has a record or a change"
        form, change = dead_letter.change, of_form(dead_letter.change)
        if form.kind == "row":
            rows = SnapshotRows(
                relation=form.relations[0],
                rows=[change.new],  # type: ignore[union-attr] # it is an insert
                ts=form.commit_ts,
                lsn=None,
                xid=None,
                kind="incremental",
            )
            empty.parts = [rows]
        else:
            end_lsn = max(position.end_lsn, 1)
            empty.parts = [
                TransactionPart(
                    xid=0,
                    begin_lsn=end_lsn,
                    commit_lsn=end_lsn,
                    commit_ts=form.commit_ts,
                    end_lsn=end_lsn,
                    changes=[change],
                )
            ]
        made = self.make(empty)
        if made.records is not None:
            made.records = [_marked(record, dead_letter) for record in made.records]
            # without parts no sink records this transaction as delivered
            made.parts = []
            if dead_letter.place.record is not None:  # the event's other records were delivered
                made.records = made.records[dead_letter.place.record : dead_letter.place.record + 1]
        return made

    def _again(self, found: RedeliveryResult) -> DeadLetter:
        assert found.error is not None
        return msgspec.structs.replace(
            found.dead_letter,
            code=found.error.code,
            reason=found.error.problem,
            remedy=found.error.advice(),
            last_ms=self.now_ms(),
            redelivered_ms=None,
        )


def _marked(record: Record, dead_letter: DeadLetter) -> Record:
    headers = tuple(each for each in record.headers if each[0] != MARK)
    mark = (MARK, msgspec.json.encode(dead_letter.id))
    return msgspec.structs.replace(record, headers=(*headers, mark))
