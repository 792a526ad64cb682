"""Give batches to a Python loop, the engine's sink.

    for batch in waltap.stream("shop.toml"):
        for record in batch.records or ():
            ...

A batch counts as delivered once it is acknowledged: by the loop's asking for the next one (or ending
by itself), or, where the caller wants that, by `StreamedBatch.ack` alone. What is not acknowledged comes
again with the next run. The server is answered meanwhile.
"""

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, Self

import msgspec

from waltap.changes.transactions.transaction import Batch, TransactionPart
from waltap.errors import WaltapError
from waltap.pipeline.api.in_process import Pipeline
from waltap.pipeline.engine.engine import Engine
from waltap.pipeline.runtime.run_state import Limits
from waltap.plugins.hookspecs import hookimpl
from waltap.ports.sink.sink import Sink, SinkCapabilities
from waltap.ports.specs import SinkSpec

log = logging.getLogger(__name__)

NAME = "python_loop"

AcknowledgedTooLate = WaltapError.define("AcknowledgedTooLate", "WT-1203")


class StreamedBatch(Batch, kw_only=True):
    """Carry a batch that the loop must acknowledge.

    Any thread may do so, in any order.
    """

    receipt: "BatchReceipt"

    def ack(self, *, earlier: bool = False) -> None:
        """Acknowledge that the batch is processed durably.

        With ``earlier``, all earlier batches too. The position moves with the next flush after every
        earlier batch is acknowledged. A second call does nothing. Raises: AcknowledgedTooLate.
        """
        self.receipt.sink.acknowledge(self.receipt, earlier=earlier)

    @property
    def acknowledged(self) -> bool:
        return self.receipt.given


@dataclass(slots=True, eq=False)
class BatchReceipt:
    """Record whether one batch was acknowledged."""

    sink: "BatchStreamSink"
    number: int
    given: bool = False


class BatchStreamSink(Sink):
    """Pass batches to the loop in order, and promise the acknowledged ones.

    ``each``: the loop finishes a batch before the next is received. ``lingers``: a clean end waits until
    all are acknowledged, and the loop ends before.
    """

    def __init__(self, *, records: bool, each: bool, most: int) -> None:
        """Let at most ``most`` batches wait."""
        self.capabilities = SinkCapabilities(records=records)
        self._each, self._most, self._waiting = each, most, deque[BatchReceipt]()
        self._changed = threading.Condition()
        self._next: StreamedBatch | None = None
        self._acknowledged, self._warned = 0, False
        self._failure: BaseException | None = None
        self.closed = self.lingers = self._ending = False

    # --- the engine's -----------------------------------------------------------------------------

    def open(self) -> None:
        """Keep nothing here."""

    def write(self, batch: Batch) -> None:
        self._wait_for_room()
        receipt = self.enter(batch.number)
        if self.closed:  # the run is at its end; the batch comes again
            return
        if not batch.parts or (not self._each and _empty(batch)):
            with suppress(AcknowledgedTooLate):
                self.acknowledge(receipt)
        if not batch.parts:  # the end of a snapshot, a notification: nothing for the loop
            return
        self._put(StreamedBatch(**msgspec.structs.asdict(batch), receipt=receipt))
        if self._each:
            with self._changed:
                self._changed.wait_for(lambda: receipt.given or self.closed)

    def flush(self) -> None:
        """Make nothing durable here: see `acknowledged`."""

    def acknowledged(self) -> int:
        """Return the last number up to which all batches are acknowledged."""
        with self._changed:
            return self._acknowledged

    def drain(self) -> None:
        """Wait for all acknowledgements, or the stream's end, if it lingers."""
        with self._changed:
            if self.lingers:
                self._ending = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self._waiting or self.closed)

    def close(self) -> None:
        """Release nothing.

        The engine may open the sink again, and given batches may still be acknowledged.
        """

    def enter(self, number: int) -> BatchReceipt:
        with self._changed:
            receipt = BatchReceipt(self, number)
            self._waiting.append(receipt)
            return receipt

    def _put(self, batch: StreamedBatch) -> None:
        """Pass a batch to the loop when it has taken the one before; none after the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._next is None or self.closed)
            self._next = None if self.closed else batch
            self._changed.notify_all()

    # --- the loop's -------------------------------------------------------------------------------

    def get(self) -> StreamedBatch | None:
        """Wait for the next batch, None at the end of the run."""
        with self._changed:
            self._changed.wait_for(lambda: self._next or self._ending or self.closed)
            batch, self._next = self._next, None
            self._changed.notify_all()
            return batch

    def acknowledge(self, receipt: BatchReceipt, *, earlier: bool = False) -> None:
        """Acknowledge a batch. Raises: AcknowledgedTooLate."""
        with self._changed:
            meant = [receipt]
            if earlier:  # one without changes is done with by itself; those before it are not
                meant += [each for each in self._waiting if each.number < receipt.number]
            if all(each.given for each in meant):
                return
            if self.closed:
                why = "the stream has ended" if self._failure is None else str(self._failure)
                raise AcknowledgedTooLate(f"a batch is acknowledged too late: {why}")
            for each in meant:
                each.given = True
            while self._waiting and self._waiting[0].given:
                self._acknowledged = self._waiting.popleft().number
            self._changed.notify_all()

    def _wait_for_room(self) -> None:
        """Wait until another batch may be given, or the stream is closed."""
        with self._changed:
            if len(self._waiting) >= self._most and not self._warned:
                self._warned = True
                text = "%d batches are not acknowledged: the next waits for one"
                log.warning(text, self._most)
            self._changed.wait_for(lambda: len(self._waiting) < self._most or self.closed)

    def end(self, failure: BaseException | None = None) -> None:
        """End all waits; other acknowledgements are refused from now on."""
        with self._changed:
            self.closed, self._failure = True, self._failure or failure
            self._changed.notify_all()


def _empty(batch: Batch) -> bool:
    """Return whether a batch has nothing for the loop.

    It has only the end of a transaction, which came later than the changes. That depends on the network,
    and acknowledgements must not.
    """
    ends = all(isinstance(part, TransactionPart) for part in batch.parts)
    return ends and not (batch.events or batch.records)


class _LoopPipeline(Pipeline):
    """Run a pipeline whose end ends the waits of its loop."""

    def __init__(
        self,
        profile: str | Path | Mapping[str, Any],
        sink: BatchStreamSink,
        overrides: Mapping[str, str] | None,
    ) -> None:
        spec = SinkSpec(name=NAME, summary="A loop in Python.", factory=lambda _p, _c: sink)
        sinks = hookimpl(lambda: [spec])
        plugin = SimpleNamespace(__module__=__name__, register_sinks=sinks)
        super().__init__(profile, sink=NAME, overrides=overrides, plugins=(plugin,))
        self.sink = sink

    def _observed(self, engine: Engine) -> None:
        try:
            super()._observed(engine)
        except BaseException as error:
            self.sink.end(error)
            raise
        self.sink.end()


def _end(pipeline: _LoopPipeline) -> BaseException | None:
    """End the run after a flush of all acknowledgements; return its failure."""
    pipeline.sink.end()
    try:
        pipeline.stop()
    except BaseException as error:  # noqa: BLE001 - raised again in the loop, which may be gone
        return error
    return None


class BatchStream(Iterator[StreamedBatch]):
    """Iterate over the batches of a running pipeline.

    As a context manager it ends with its block: open batches at the end of the loop may still be
    acknowledged there.
    """

    def __init__(self, pipeline: _LoopPipeline, limits: Limits | None, *, auto: bool) -> None:
        self._pipeline, self._limits, self._auto = pipeline, limits, auto
        self._sink = pipeline.sink
        self._given: StreamedBatch | None = None
        self._finished = False
        self._end: Callable[[], BaseException | None] | None = None
        self._failure: BaseException | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StreamedBatch:
        """Return the next batch. Raises: WaltapError of the pipeline."""
        if self._finished:
            raise StopIteration
        if self._end is None:
            self._pipeline.start(self._limits)
            self._end = weakref.finalize(self, _end, self._pipeline)
        if self._auto and self._given is not None:
            with suppress(AcknowledgedTooLate):  # what ended the run is raised below
                self._given.ack()
        self._given = self._sink.get()
        if self._given is None:
            self._finished = True
            if self._sink.closed:  # else its last batches may still be acknowledged
                self.close()
                self._raise_failure()
            raise StopIteration
        return self._given

    def __enter__(self) -> Self:
        self._sink.lingers = True
        return self

    def __exit__(self, kind: type[BaseException] | None, *_details: object) -> None:
        self.close()
        if kind is None:
            self._raise_failure()

    def close(self) -> None:
        """End the run: batches without an acknowledgement come again with the next."""
        self._finished = True
        if self._end is not None:
            self._failure = self._end() or self._failure

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


def stream(
    profile: str | Path | Mapping[str, Any],
    *,
    records: bool = True,
    acknowledge: Literal["auto", "explicit"] = "auto",
    unacknowledged: int = 1000,
    limits: Limits | None = None,
    overrides: Mapping[str, str] | None = None,
) -> BatchStream:
    """Yield the batches of ``profile``; its sink is unused.

    Relative paths (state, secrets) start at the folder of the file, for tables at the current
    directory at the time of the call, which the log names.

    With ``records`` they are rendered (`Batch.records`); else only `Batch.parts` is filled. With
    ``acknowledge="auto"`` a batch is acknowledged when the loop asks for the next one, and nothing is
    received before. With "explicit" only `StreamedBatch.ack` does: up to ``unacknowledged`` batches wait
    at a time. A batch without changes and records, the end of a transaction alone, needs no
    acknowledgement.

    The stream ends with ``limits``, or when the caller breaks out: other batches then come again. Raises:
    ConfigurationError from the call; WaltapError from the loop.
    """
    auto = acknowledge == "auto"
    sink = BatchStreamSink(records=records, each=auto, most=max(1, unacknowledged))
    return BatchStream(_LoopPipeline(profile, sink, overrides), limits, auto=auto)
