"""Deliver dead letters again, by a command or by the running pipeline.

Nothing else is delivered meanwhile. A running pipeline closes its connection and its sink first, and uses
new stages, so that relations of old dead letters do not reach the stream.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import msgspec

from waltap.changes.transactions.position import Positions
from waltap.clock import Clock
from waltap.errors import ConfigurationError, PropertyProblem, WaltapError
from waltap.pipeline.delivery.sink_branch import SinkBranch
from waltap.ports.offsets.offset import OffsetStore
from waltap.services.control.protocol import RedeliveryRequest
from waltap.services.dead_letters.dead_letter import DeadLetter
from waltap.services.dead_letters.redelivery import Redelivery, RedeliveryResult
from waltap.services.dead_letters.store import DeadLetterStore

log = logging.getLogger(__name__)


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
            problem = PropertyProblem(
                "sinks", f"dead letters are of the sink {sink!r}, which is not there", allowed=named
            )
            raise ConfigurationError([problem])
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
