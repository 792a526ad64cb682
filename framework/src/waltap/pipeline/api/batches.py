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
from pathlib import Path
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
        self.receipt.give(earlier=earlier)

    @property
    def acknowledged(self) -> bool:
        return self.receipt.given


class BatchReceipt:
    """Record whether one batch was acknowledged."""

    __slots__ = ("_ledger", "given", "number")

    def __init__(self, ledger: "BatchLedger", number: int) -> None:
        self._ledger, self.number, self.given = ledger, number, False

    def give(self, *, earlier: bool = False) -> None:
        """Acknowledge the batch. Raises: AcknowledgedTooLate."""
        self._ledger.acknowledge(self, earlier=earlier)


class BatchLedger:
    """Pass batches to the loop in order, and keep their acknowledgements.

    ``lingers``: a clean end waits until all are acknowledged, and the loop ends before.
    """

    def __init__(self, most: int) -> None:
        """Let at most ``most`` batches wait."""
        self._most, self._waiting = most, deque[BatchReceipt]()
        self._changed = threading.Condition()
        self._next: StreamedBatch | None = None
        self._acknowledged, self._warned = 0, False
        self._failure: BaseException | None = None
        self.closed = self.lingers = self._ending = False

    @property
    def acknowledged(self) -> int:
        """Return the last number up to which all batches are acknowledged."""
        with self._changed:
            return self._acknowledged

    def enter(self, number: int) -> BatchReceipt:
        with self._changed:
            receipt = BatchReceipt(self, number)
            self._waiting.append(receipt)
            return receipt

    def put(self, batch: "StreamedBatch") -> None:
        """Pass a batch to the loop when it has taken the one before; none after the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._next is None or self.closed)
            self._next = None if self.closed else batch
            self._changed.notify_all()

    def get(self) -> "StreamedBatch | None":
        """Wait for the next batch, None at the end of the run."""
        with self._changed:
            self._changed.wait_for(lambda: self._next or self._ending or self.closed)
            batch, self._next = self._next, None
            self._changed.notify_all()
            return batch

    def acknowledge(self, receipt: BatchReceipt, *, earlier: bool) -> None:
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

    def wait_for(self, receipt: BatchReceipt) -> None:
        """Wait until the batch is acknowledged, or the stream is closed."""
        with self._changed:
            self._changed.wait_for(lambda: receipt.given or self.closed)

    def wait_for_room(self) -> None:
        """Wait until another batch may be given, or the stream is closed."""
        with self._changed:
            if len(self._waiting) >= self._most and not self._warned:
                self._warned = True
                log.warning(
                    "%d batches are not acknowledged: the next waits for one",
                    self._most,
                )
            self._changed.wait_for(lambda: len(self._waiting) < self._most or self.closed)

    def drain(self) -> None:
        """Wait for all acknowledgements, or the stream's close, if it lingers."""
        with self._changed:
            if self.lingers:
                self._ending = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self._waiting or self.closed)

    def close(self, failure: BaseException | None = None) -> None:
        """End all waits; other acknowledgements are refused from now on."""
        with self._changed:
            self.closed, self._failure = True, self._failure or failure
            self._changed.notify_all()


class BatchStreamSink(Sink):
    """Give each batch to the loop, and promise the acknowledged ones.

    ``each``: the loop finishes a batch before the next is received.
    """

    def __init__(self, *, records: bool, each: bool, most: int) -> None:
        self.capabilities = SinkCapabilities(records=records)
        self.ledger = BatchLedger(most)
        self._each = each

    def open(self) -> None:
        """Keep nothing here."""

    def write(self, batch: Batch) -> None:
        self.ledger.wait_for_room()
        receipt = self.ledger.enter(batch.number)
        if self.ledger.closed:  # the run is at its end; the batch comes again
            return
        if not batch.parts or (not self._each and _empty(batch)):
            with suppress(AcknowledgedTooLate):
                receipt.give()
        if not batch.parts:  # the end of a snapshot, a notification: nothing for the loop
            return
        self.ledger.put(StreamedBatch(**msgspec.structs.asdict(batch), receipt=receipt))
        if self._each:
            self.ledger.wait_for(receipt)

    def flush(self) -> None:
        """Make nothing durable here: see `acknowledged`."""

    def acknowledged(self) -> int:
        return self.ledger.acknowledged

    def drain(self) -> None:
        self.ledger.drain()

    def close(self) -> None:
        """Release nothing.

        The engine may open the sink again, and given batches may still be acknowledged.
        """


def _empty(batch: Batch) -> bool:
    """Return whether a batch has nothing for the loop.

    It has only the end of a transaction, which came later than the changes. That depends on the network,
    and acknowledgements must not.
    """
    ends = all(isinstance(part, TransactionPart) for part in batch.parts)
    return ends and not (batch.events or batch.records)


class _LoopPlugin:
    """Register the sink of one loop on the loop's own host."""

    def __init__(self, sink: BatchStreamSink) -> None:
        spec = SinkSpec(name=NAME, summary="A loop in Python.", factory=lambda _p, _c: sink)
        self.register_sinks = hookimpl(lambda: [spec])


class _LoopPipeline(Pipeline):
    """Run a pipeline whose end ends the waits of its loop."""

    def __init__(
        self,
        profile: str | Path | Mapping[str, Any],
        sink: BatchStreamSink,
        overrides: Mapping[str, str] | None,
    ) -> None:
        plugins = (_LoopPlugin(sink),)
        super().__init__(profile, sink=NAME, overrides=overrides, plugins=plugins)
        self.ledger = sink.ledger

    def _observed(self, engine: Engine) -> None:
        try:
            super()._observed(engine)
        except BaseException as error:
            self.ledger.close(error)
            raise
        self.ledger.close()


def _end(pipeline: _LoopPipeline) -> BaseException | None:
    """End the run after a flush of all acknowledgements; return its failure."""
    pipeline.ledger.close()
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
        self._ledger = pipeline.ledger
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
        self._given = self._ledger.get()
        if self._given is None:
            self._finished = True
            if self._ledger.closed:  # else its last batches may still be acknowledged
                self.close()
                self._raise_failure()
            raise StopIteration
        return self._given

    def __enter__(self) -> Self:
        self._ledger.lingers = True
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
