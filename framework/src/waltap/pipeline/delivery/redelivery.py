"""Deliver dead letters again, by a command or by the running pipeline.

The sink gets the refused record again. A change that could not be rendered then is rendered now by
transforms and format. The position of the pipeline does not change, and nothing else is delivered
meanwhile. A running pipeline closes its connection and its sink first, and uses new stages, so that
relations of old dead letters do not reach the stream.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from waltap.base.text import in_brief
from waltap.changes.events.event import Record
from waltap.changes.transactions.position import Position, Positions
from waltap.changes.transactions.transaction import Batch, SnapshotRows, TransactionPart
from waltap.clock import Clock
from waltap.errors import ConfigurationError, RecordError, WaltapError
from waltap.pipeline.delivery.sink_branch import SinkBranch
from waltap.ports.offsets.offset import OffsetStore
from waltap.ports.signals.inbox import EngineInbox, begun
from waltap.ports.sink.refusal import RecordsRefused
from waltap.ports.sink.roles import RedeliveryAwareSink, flush_acknowledged
from waltap.ports.sink.sink import Sink
from waltap.services.control import ControlAnswer, RedeliveryRequest
from waltap.services.dead_letters.dead_letter import DeadLetter, of_form, record_of
from waltap.services.dead_letters.store import DeadLetterStore

log = logging.getLogger(__name__)

ID_HEADER: Final = "waltap-dead-letter"
"""Header of a redelivered record: the dead letter's id, by which a consumer recognizes a duplicate."""

AT_A_TIME: Final = 100
"""Dead letters between two flushes: a killed redelivery repeats at most this number."""


@dataclass(frozen=True, slots=True)
class Redelivery:
    """Redeliver dead letters to the sinks of ``branches``.

    The branches are made for this alone, and nothing else delivers meanwhile. Each batch names the dead
    letters that the sink got since the last flush (`Batch.redelivers`). A sink that stores these ids with
    the data can report, after a kill, which dead letters it has.
    """

    dead_letters: DeadLetterStore
    branches: Sequence[SinkBranch]
    offsets: OffsetStore
    clock: Clock

    def run(
        self, dead_letters: Sequence[DeadLetter], *, again: bool, re_render: bool
    ) -> Iterator[tuple[str, str]]:
        """Deliver ``dead_letters`` to the sinks that refused them.

        Yields each durable outcome: the id, and why it was refused, "" if the sink has it. ``again``
        includes dead letters that were delivered before; ``re_render`` uses the present transforms and
        format. Raises: SinkError for a failure that no single dead letter causes (the letters that were
        yielded before stay delivered); ConfigurationError if a sink is missing.
        """
        waiting = [each for each in dead_letters if again or each.redelivered_ms is None]
        for name in dict.fromkeys(each.sink for each in waiting):
            of_sink = [each for each in waiting if each.sink == name]
            branch = self._branch(name)
            sink = branch.make()
            try:
                yield from self._deliver(of_sink, sink, branch.render, re_render=re_render)
            finally:
                sink.close()

    def _branch(self, sink: str) -> SinkBranch:
        """Return the branch of a sink. Raises: ConfigurationError if it is missing."""
        for each in self.branches:
            if each.name == sink:
                return each
        named = ", ".join(each.name for each in self.branches) or "the profile's only one"
        raise ConfigurationError.of(
            "sinks", f"dead letters are of the sink {sink!r}, which is not there", allowed=named
        )

    def _deliver(
        self,
        dead_letters: Sequence[DeadLetter],
        sink: Sink,
        render: Callable[[Batch], Batch],
        *,
        re_render: bool,
    ) -> Iterator[tuple[str, str]]:
        offset = self.offsets.load()
        stored = Positions() if offset is None else offset.positions
        sink_positions = Positions.of(sink.open(), next(iter(stored), ""))
        known = set(sink.redelivered()) if isinstance(sink, RedeliveryAwareSink) else set[str]()
        # a redelivery that was killed after the flush delivered these already
        delivered = [
            e for e in dead_letters if e.redelivery_id in known and e.redelivered_ms is None
        ]
        if delivered:
            self.dead_letters.mark_redelivered(delivered, self._now_ms())
        delivered_ids = {each.id: "" for each in delivered}
        yield from delivered_ids.items()
        waiting = [each for each in dead_letters if each.id not in delivered_ids]
        accepted = 0
        for first in range(0, len(waiting), AT_A_TIME):
            found: list[tuple[DeadLetter, WaltapError | None]] = []
            ids: tuple[str, ...] = ()
            for dead_letter in waiting[first : first + AT_A_TIME]:
                with_this = (*ids, dead_letter.redelivery_id)
                own = stored.get(dead_letter.location.partition, Position(0))
                position = max(own, sink_positions.get(dead_letter.location.partition, own))
                try:
                    # the stored dead letter keeps its record
                    given = dead_letter
                    if re_render and dead_letter.change is not None:
                        given = msgspec.structs.replace(dead_letter, record=None)
                    batch = _batch(given, position, render)
                    batch.redelivers, batch.number = with_this, accepted + 1
                    sink.write(batch)
                except RecordsRefused as error:
                    found.append((dead_letter, error.refused[0].error))
                except RecordError as error:
                    found.append((dead_letter, error))
                else:
                    ids, accepted = with_this, accepted + 1
                    found.append((dead_letter, None))
            flush_acknowledged(sink, accepted, Positions())
            now_ms = self._now_ms()
            self.dead_letters.mark_redelivered([e for e, error in found if error is None], now_ms)
            self.dead_letters.put([_refused_again(e, error, now_ms) for e, error in found if error])
            yield from ((e.id, "" if error is None else error.problem) for e, error in found)

    def _now_ms(self) -> int:
        return self.clock.time_ns() // 1_000_000


def _batch(dead_letter: DeadLetter, position: Position, render: Callable[[Batch], Batch]) -> Batch:
    empty = Batch(parts=[], position=position, partition=dead_letter.location.partition, events=1)
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
    made = render(empty)
    if made.records is not None:
        made.records = [_with_id(record, dead_letter) for record in made.records]
        # without parts no sink records this transaction as delivered
        made.parts = []
        if dead_letter.location.record is not None:  # the event's other records were delivered
            made.records = made.records[
                dead_letter.location.record : dead_letter.location.record + 1
            ]
    return made


def _refused_again(dead_letter: DeadLetter, error: WaltapError, now_ms: int) -> DeadLetter:
    return msgspec.structs.replace(
        dead_letter,
        code=error.code,
        reason=error.problem,
        remedy=error.advice(),
        last_ms=now_ms,
        redelivered_ms=None,
    )


def _with_id(record: Record, dead_letter: DeadLetter) -> Record:
    headers = tuple(each for each in record.headers if each[0] != ID_HEADER)
    header = (ID_HEADER, msgspec.json.encode(dead_letter.id))
    return msgspec.structs.replace(record, headers=(*headers, header))


class RedeliveryAsked(Exception):
    """End a connection, so that dead letters are delivered before the next."""


RedeliveryInbox = EngineInbox[RedeliveryRequest, ControlAnswer]


def redelivery_inbox() -> RedeliveryInbox:
    """Return the inbox of a run's requests to redeliver dead letters."""
    return RedeliveryInbox(lambda _request, why: _report({}, why))


def _report(found: dict[str, str], why: str = "") -> ControlAnswer:
    """Return the answer; ``why`` the redelivery broke off or did not begin."""
    return ControlAnswer(ok=True, accepted=not why, reason=why, dead_letters=found)


def serve(inbox: RedeliveryInbox, redelivery: Redelivery) -> None:
    """Process the waiting requests.

    A failure is reported to the thread that sent the request.
    """
    while (item := inbox.take()) is not None:
        request, future = item
        if begun(future):
            future.set_result(_answer(redelivery, request))


def _answer(redelivery: Redelivery, request: RedeliveryRequest) -> ControlAnswer:
    found: dict[str, str] = {}
    try:
        every = redelivery.dead_letters.all()
        chosen = [each for each in every if not request.ids or each.id in request.ids]
        # What it yields before an error stays in there.
        found.update(redelivery.run(chosen, again=request.again, re_render=request.re_render))
    except Exception as error:  # noqa: BLE001 - the pipeline continues, or fails of the same by itself
        problem = str(error) if isinstance(error, WaltapError) else in_brief(error)
        log.warning("a redelivery of dead letters broke off: %s", problem)
        return _report(found, problem)
    delivered = sum(not why for why in found.values())
    log.info(
        "dead letters were redelivered: %d delivered, %d refused", delivered, len(found) - delivered
    )
    return _report(found)
