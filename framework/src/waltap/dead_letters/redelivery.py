"""Dead letters to the sink again, while the pipeline delivers nothing.

A letter is given to the sink as it was refused, or, of a change that no record could be made of, as what
transforms and format make of it now. The position of the pipeline stays where it is.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from waltap.dead_letters.change_form import of_form
from waltap.dead_letters.dead_letter import DeadLetter, record_of
from waltap.dead_letters.store import LetterStore
from waltap.errors import RecordError, WaltapError
from waltap.format.record import Record
from waltap.sink.refusal import RecordsRefused
from waltap.sink.sink import Sink
from waltap.source.position import Position, Positions
from waltap.transactions.transaction import Batch, SnapshotRows, TransactionPart

__all__ = ["MARK", "Redelivery", "RedeliveryResult"]

MARK: Final = "waltap-dead-letter"
"""Header of a record that is replayed: the letter's id, by which a consumer knows it again."""

AT_A_TIME: Final = 100
"""Letters between two flushes: so many may come twice when a replay is killed."""


@dataclass(frozen=True, slots=True)
class RedeliveryResult:
    """What became of a letter: ``error`` is why it was refused again, None where it was delivered."""

    letter: DeadLetter
    error: WaltapError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Redelivery:
    """Gives letters to one sink, which is not open yet. ``make`` is what transforms and format make of a
    batch of changes; ``stored`` are the pipeline's positions.

    Each batch names the letters since the last flush that the sink has got (`Batch.replays`). A sink that
    keeps this with the data tells by it, after a kill, which of them it has.
    """

    store: LetterStore
    sink: Sink
    make: Callable[[Batch], Batch]
    stored: Positions
    now_ms: Callable[[], int]

    def run(self, letters: Sequence[DeadLetter]) -> Iterator[RedeliveryResult]:
        """Deliver ``letters`` in their order, and tell of each when it is durable, and marked.

        Raises: SinkError for what is not one letter's fault; those told of before stay delivered.
        """
        try:
            held = Positions.of(self.sink.open(), next(iter(self.stored), ""))
            there = set(self.sink.replayed())
            had = [each for each in letters if each.mark in there and each.replayed_ms is None]
            if had:
                self.store.mark(had, self.now_ms())
                yield from map(RedeliveryResult, had)
            known = {each.id for each in had}
            waiting = [each for each in letters if each.id not in known]
            for first in range(0, len(waiting), AT_A_TIME):
                found: list[RedeliveryResult] = []
                given: tuple[str, ...] = ()
                for letter in waiting[first : first + AT_A_TIME]:
                    error = self._refusal(letter, held, (*given, letter.mark))
                    given = given if error else (*given, letter.mark)
                    found.append(RedeliveryResult(letter, error))
                self.sink.flush()
                self.store.mark([e.letter for e in found if e.error is None], self.now_ms())
                self.store.put([self._again(e) for e in found if e.error is not None])
                yield from found
        finally:
            self.sink.close()

    def _refusal(
        self, letter: DeadLetter, held: Positions, marks: tuple[str, ...]
    ) -> WaltapError | None:
        """Write one letter; return why it is refused."""
        name = letter.place.partition
        position = max(
            self.stored.get(name, Position(0)), held.get(name, self.stored.get(name, Position(0)))
        )
        try:
            batch = self._batch(letter, position)
            batch.replays = marks
            self.sink.write(batch)
        except RecordsRefused as error:
            return error.refused[0].error
        except RecordError as error:
            return error
        return None

    def _batch(self, letter: DeadLetter, position: Position) -> Batch:
        empty = Batch(parts=[], position=position, partition=letter.place.partition, events=1)
        if letter.record is not None:
            empty.records = [_marked(record_of(letter.record), letter)]
            return empty
        assert letter.change is not None, "a letter has a record or a change"
        form, change = letter.change, of_form(letter.change)
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
            made.records = [_marked(record, letter) for record in made.records]
            made.parts = []  # no sink is to think that it has had this transaction
            if letter.place.record is not None:  # the others of the event were delivered
                made.records = made.records[letter.place.record : letter.place.record + 1]
        return made

    def _again(self, found: RedeliveryResult) -> DeadLetter:
        assert found.error is not None
        return msgspec.structs.replace(
            found.letter,
            code=found.error.code,
            reason=found.error.problem,
            remedy=found.error.advice(),
            last_ms=self.now_ms(),
            replayed_ms=None,
        )


def _marked(record: Record, letter: DeadLetter) -> Record:
    headers = tuple(each for each in record.headers if each[0] != MARK)
    mark = (MARK, msgspec.json.encode(letter.id))
    return msgspec.structs.replace(record, headers=(*headers, mark))
