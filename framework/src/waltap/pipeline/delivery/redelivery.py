"""Dead letters of a pipeline to its sinks again: by a command, or by the process that runs it.

Both do the same, while nothing else is delivered. A run lets go of its connection and its sink for it, so
that what a replay makes of old tables is nothing that the stream goes on with.
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
from waltap.services.control.protocol import ReplayRequest
from waltap.services.dead_letters.dead_letter import DeadLetter
from waltap.services.dead_letters.redelivery import Redelivery, RedeliveryResult
from waltap.services.dead_letters.store import LetterStore

__all__ = ["Redeliveries", "ReplayAnswer", "ReplayAsked", "ReplayDesk"]

log = logging.getLogger(__name__)


class ReplayAsked(Exception):
    """Ends a connection, so that dead letters can be delivered; the next one goes on."""


class ReplayAnswer(msgspec.Struct, frozen=True):
    """What became of a replay: ``letters`` maps ids to why they were refused, "" where they were
    delivered; ``reason`` is why it broke off, or did not begin."""

    letters: dict[str, str]
    reason: str = ""


class ReplayDesk:
    """Replays on their way from any thread to the engine's. Each future is done when the run has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: list[tuple[ReplayRequest, Future[ReplayAnswer]]] = []
        self._closed = ""

    def put(self, request: ReplayRequest) -> "Future[ReplayAnswer]":
        """Hand over a request. Any thread may call; it does not wait."""
        future: Future[ReplayAnswer] = Future()
        with self._lock:
            if self._closed:
                future.set_result(ReplayAnswer({}, self._closed))
            else:
                self._asked.append((request, future))
        return future

    def check(self) -> None:
        """Raises: ReplayAsked, when somebody waits for a replay."""
        if any(not future.cancelled() for _, future in self._asked):
            raise ReplayAsked

    def serve(self, redelivery: "Redeliveries") -> None:
        """Do what was asked for; whatever fails is the asker's to know."""
        with self._lock:
            asked, self._asked = self._asked, []
        for request, future in asked:
            if future.set_running_or_notify_cancel():
                future.set_result(_answer(redelivery, request))

    def close(self, why: str) -> None:
        """Answer all that was not done, and what comes from now on, with ``why``."""
        with self._lock:
            self._closed = why
            asked, self._asked = self._asked, []
        for _request, future in asked:
            if future.set_running_or_notify_cancel():
                future.set_result(ReplayAnswer({}, why))


def _answer(redelivery: "Redeliveries", request: ReplayRequest) -> ReplayAnswer:
    found: dict[str, str] = {}
    try:
        every = redelivery.letters.letters()
        chosen = [each for each in every if not request.ids or each.id in request.ids]
        for each in redelivery.run(chosen, again=request.again, anew=request.anew):
            found[each.letter.id] = "" if each.error is None else each.error.problem
    except Exception as error:  # noqa: BLE001 - the pipeline goes on, or fails of the same by itself
        told = str(error) if isinstance(error, WaltapError) else f"{type(error).__name__}: {error}"
        log.warning("a replay of dead letters broke off: %s", told)
        return ReplayAnswer(found, told)
    delivered = sum(not why for why in found.values())
    log.info(
        "dead letters were replayed: %d delivered, %d refused", delivered, len(found) - delivered
    )
    return ReplayAnswer(found)


class Redeliveries:
    """Delivers dead letters to the sinks of ``branches`` while nothing else does.

    The branches are made for it alone.
    """

    def __init__(
        self,
        letters: LetterStore,
        branches: Sequence[SinkBranch],
        offsets: OffsetStore,
        clock: Clock,
    ) -> None:
        self.letters, self._branches, self._offsets = letters, branches, offsets
        self._clock = clock

    def run(
        self, letters: Sequence[DeadLetter], *, again: bool, anew: bool
    ) -> Iterator[RedeliveryResult]:
        """Deliver ``letters`` to the sinks that refused them, and tell of each.

        ``again``: those that were replayed before, too; ``anew``: by the transforms and the format of now.
        Raises: SinkError of what is no single letter's fault; ConfigurationError where a sink is gone.
        """
        waiting = [each for each in letters if again or each.replayed_ms is None]
        for sink in dict.fromkeys(each.sink for each in waiting):
            those = [_without_record(e) if anew else e for e in waiting if e.sink == sink]
            yield from self._of_sink(sink).run(those)

    def _of_sink(self, sink: str) -> Redelivery:
        """Return what replays the letters of a sink. Raises: ConfigurationError where it is gone."""
        branch = next((each for each in self._branches if each.name == sink), None)
        if branch is None:
            named = ", ".join(each.name for each in self._branches) or "the profile's only one"
            problem = PropertyProblem(
                "sinks", f"letters are of the sink {sink!r}, which is not there", allowed=named
            )
            raise ConfigurationError([problem])
        offset = self._offsets.load()
        return Redelivery(
            store=self.letters,
            sink=branch.sink,
            make=branch.render,
            stored=Positions() if offset is None else offset.positions,
            now_ms=lambda: self._clock.time_ns() // 1_000_000,
        )


def _without_record(letter: DeadLetter) -> DeadLetter:
    return msgspec.structs.replace(letter, record=None) if letter.change is not None else letter
