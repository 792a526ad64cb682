"""Deliver dead letters again, by a command or by the running pipeline.

Nothing else is delivered meanwhile. A running pipeline closes its connection and its sink first, and uses
new stages, so that relations of old dead letters do not reach the stream.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

import msgspec

from waltap.changes.events.event import Record
from waltap.changes.transactions.position import Position, Positions
from waltap.changes.transactions.transaction import Batch, SnapshotRows, TransactionPart
from waltap.clock import Clock
from waltap.errors import ConfigurationError, RecordError, WaltapError
from waltap.pipeline.delivery.sink_branch import SinkBranch
from waltap.ports.offsets.offset import OffsetStore
from waltap.ports.sink.refusal import RecordsRefused
from waltap.ports.sink.roles import RedeliveryAwareSink
from waltap.ports.sink.sink import Sink
from waltap.services.control import RedeliveryRequest
from waltap.services.dead_letters.change_form import of_form
from waltap.services.dead_letters.dead_letter import DeadLetter, record_of
from waltap.services.dead_letters.store import DeadLetterStore

log = logging.getLogger(__name__)

# Redeliver dead letters while the pipeline delivers nothing.
#
# The sink gets the refused record again. A change that could not be rendered then is rendered now by
# transforms and format. The position of the pipeline does not change.


ID_HEADER: Final = "waltap-dead-letter"
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
    that stores these ids with the data can report, after a kill, which dead letters it has.
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
            stored_position = Positions.of(self.sink.open(), next(iter(self.stored), ""))
            there = set[str]()
            if isinstance(self.sink, RedeliveryAwareSink):
                there.update(self.sink.redelivered())
            # a redelivery that was killed after the flush delivered these already
            had = [
                each
                for each in dead_letters
                if each.redelivery_id in there and each.redelivered_ms is None
            ]
            if had:
                self.store.mark_redelivered(had, self.now_ms())
                yield from map(RedeliveryResult, had)
            known = {each.id for each in had}
            waiting = [each for each in dead_letters if each.id not in known]
            for first in range(0, len(waiting), AT_A_TIME):
                found: list[RedeliveryResult] = []
                given: tuple[str, ...] = ()
                for dead_letter in waiting[first : first + AT_A_TIME]:
                    error = self._refusal(
                        dead_letter, stored_position, (*given, dead_letter.redelivery_id)
                    )
                    given = given if error else (*given, dead_letter.redelivery_id)
                    found.append(RedeliveryResult(dead_letter, error))
                self.sink.flush()
                self.store.mark_redelivered(
                    [e.dead_letter for e in found if e.error is None], self.now_ms()
                )
                self.store.put([self._again(e) for e in found if e.error is not None])
                yield from found
        finally:
            self.sink.close()

    def _refusal(
        self, dead_letter: DeadLetter, stored_position: Positions, redelivery_ids: tuple[str, ...]
    ) -> WaltapError | None:
        """Write one dead letter and return its refusal, if any."""
        name = dead_letter.place.partition
        position = max(
            self.stored.get(name, Position(0)),
            stored_position.get(name, self.stored.get(name, Position(0))),
        )
        try:
            batch = self._batch(dead_letter, position)
            batch.redelivers = redelivery_ids
            self.sink.write(batch)
        except RecordsRefused as error:
            return error.refused[0].error
        except RecordError as error:
            return error
        return None

    def _batch(self, dead_letter: DeadLetter, position: Position) -> Batch:
        empty = Batch(parts=[], position=position, partition=dead_letter.place.partition, events=1)
        if dead_letter.record is not None:
            empty.records = [_with_id(record_of(dead_letter.record), dead_letter)]
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
            made.records = [_with_id(record, dead_letter) for record in made.records]
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


def _with_id(record: Record, dead_letter: DeadLetter) -> Record:
    headers = tuple(each for each in record.headers if each[0] != ID_HEADER)
    header = (ID_HEADER, msgspec.json.encode(dead_letter.id))
    return msgspec.structs.replace(record, headers=(*headers, header))


class RedeliveryAsked(Exception):
    """End a connection, so that dead letters are delivered before the next."""


class RedeliveryAnswer(msgspec.Struct, frozen=True):
    """Report a redelivery.

    ``dead_letters`` maps ids to the reasons of refusals, "" for delivered letters. ``reason`` says why the
    redelivery broke off or did not begin.
    """

    dead_letters: dict[str, str]
    reason: str = ""


class RedeliveryQueue:
    """Pass redelivery requests from any thread to the engine's thread.

    Each future is done at the end of the run.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: list[tuple[RedeliveryRequest, Future[RedeliveryAnswer]]] = []
        self._closed = ""

    def put(self, request: RedeliveryRequest) -> "Future[RedeliveryAnswer]":
        """Queue a request without waiting. Any thread may call."""
        future: Future[RedeliveryAnswer] = Future()
        with self._lock:
            if self._closed:
                future.set_result(RedeliveryAnswer({}, self._closed))
            else:
                self._asked.append((request, future))
        return future

    def check(self) -> None:
        """Raise RedeliveryAsked if a request waits."""
        if any(not future.cancelled() for _, future in self._asked):
            raise RedeliveryAsked

    def serve(self, redelivery: "Redeliveries") -> None:
        """Process the waiting requests.

        A failure is reported to the thread that sent the request.
        """
        with self._lock:
            asked, self._asked = self._asked, []
        for request, future in asked:
            if future.set_running_or_notify_cancel():
                future.set_result(_answer(redelivery, request))

    def close(self, why: str) -> None:
        """Answer all waiting and later requests with ``why``."""
        with self._lock:
            self._closed = why
            asked, self._asked = self._asked, []
        for _request, future in asked:
            if future.set_running_or_notify_cancel():
                future.set_result(RedeliveryAnswer({}, why))


def _answer(redelivery: "Redeliveries", request: RedeliveryRequest) -> RedeliveryAnswer:
    found: dict[str, str] = {}
    try:
        every = redelivery.dead_letters.all()
        chosen = [each for each in every if not request.ids or each.id in request.ids]
        for each in redelivery.run(chosen, again=request.again, re_render=request.re_render):
            found[each.dead_letter.id] = "" if each.error is None else each.error.problem
    except Exception as error:  # noqa: BLE001 - the pipeline continues, or fails of the same by itself
        problem = (
            str(error) if isinstance(error, WaltapError) else f"{type(error).__name__}: {error}"
        )
        log.warning("a redelivery of dead letters broke off: %s", problem)
        return RedeliveryAnswer(found, problem)
    delivered = sum(not why for why in found.values())
    log.info(
        "dead letters were redelivered: %d delivered, %d refused", delivered, len(found) - delivered
    )
    return RedeliveryAnswer(found)


class Redeliveries:
    """Deliver dead letters to the sinks of ``branches``.

    The branches are made for this alone, and nothing else delivers meanwhile.
    """

    def __init__(
        self,
        dead_letters: DeadLetterStore,
        branches: Sequence[SinkBranch],
        offsets: OffsetStore,
        clock: Clock,
    ) -> None:
        self.dead_letters, self._branches, self._offsets = dead_letters, branches, offsets
        self._clock = clock

    def run(
        self, dead_letters: Sequence[DeadLetter], *, again: bool, re_render: bool
    ) -> Iterator[RedeliveryResult]:
        """Deliver ``dead_letters`` to the sinks that refused them; yield each outcome.

        ``again`` includes dead letters that were delivered before; ``re_render`` uses the present
        transforms and format. Raises: SinkError that no single dead letter causes; ConfigurationError if a
        sink is missing.
        """
        waiting = [each for each in dead_letters if again or each.redelivered_ms is None]
        for sink in dict.fromkeys(each.sink for each in waiting):
            those = [_without_record(e) if re_render else e for e in waiting if e.sink == sink]
            yield from self._of_sink(sink).run(those)

    def _of_sink(self, sink: str) -> Redelivery:
        """Return the redelivery to one sink. Raises: ConfigurationError if it is missing."""
        branch = next((each for each in self._branches if each.name == sink), None)
        if branch is None:
            named = ", ".join(each.name for each in self._branches) or "the profile's only one"
            raise ConfigurationError.of(
                "sinks", f"dead letters are of the sink {sink!r}, which is not there", allowed=named
            )
        offset = self._offsets.load()
        return Redelivery(
            store=self.dead_letters,
            sink=branch.stages.make(),
            make=branch.render,
            stored=Positions() if offset is None else offset.positions,
            now_ms=lambda: self._clock.time_ns() // 1_000_000,
        )


def _without_record(dead_letter: DeadLetter) -> DeadLetter:
    return (
        msgspec.structs.replace(dead_letter, record=None)
        if dead_letter.change is not None
        else dead_letter
    )
