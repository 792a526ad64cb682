"""Give batches to a Python loop, the engine's sink.

    for batch in waltap.stream("shop.toml"):
        for record in batch.records or ():
            ...

A batch counts as delivered once it is acknowledged: by the loop's asking for the next one (or ending
by itself), or, where the caller wants that, by `StreamedBatch.ack` alone. What is not acknowledged comes
again with the next run. The server is answered meanwhile.
"""

import logging
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from waltap.changes.transactions.transaction import Batch, TransactionPart
from waltap.config.layers import load, read_tables
from waltap.config.profile import Profile
from waltap.config.resolve import resolve
from waltap.errors import WaltapError
from waltap.pipeline.engine.engine import Engine
from waltap.pipeline.runtime.run_state import Limits
from waltap.plugins.host import Host
from waltap.ports.sink.sink import Sink, SinkCapabilities
from waltap.ports.specs import SinkSpec
from waltap.services.telemetry.observers import observed

log = logging.getLogger(__name__)

NAME = "python_loop"
WAKE_S = 0.2


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
        """Return whether the batch is acknowledged."""
        return self.receipt.given


class BatchReceipt:
    """Record whether one batch was acknowledged."""

    __slots__ = ("_ledger", "given", "number")

    def __init__(self, ledger: "BatchLedger", number: int) -> None:
        self._ledger, self.number, self.given = ledger, number, False

    def give(self, *, earlier: bool = False) -> None:
        """Acknowledge the batch. Raises: AcknowledgedTooLate."""
        self._ledger.acknowledge(self, earlier=earlier)

    def __repr__(self) -> str:
        return f"<{'' if self.given else 'not '}acknowledged>"


class BatchLedger:
    """Keep the batches of the loop in order, with their acknowledgements."""

    def __init__(self, most: int) -> None:
        """Let at most ``most`` batches wait."""
        self._most, self._waiting = most, deque[BatchReceipt]()
        self._changed = threading.Condition()
        self._acknowledged, self._warned = 0, False
        self._failure: BaseException | None = None
        self.closed = False

    @property
    def acknowledged(self) -> int:
        """Return the last number up to which all batches are acknowledged."""
        with self._changed:
            return self._acknowledged

    def enter(self, number: int) -> BatchReceipt:
        """Add a batch for the loop."""
        with self._changed:
            receipt = BatchReceipt(self, number)
            self._waiting.append(receipt)
            return receipt

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
                    "%d batches are not acknowledged: no more are given until some are", self._most
                )
            self._changed.wait_for(lambda: len(self._waiting) < self._most or self.closed)

    def wait_for_all(self) -> None:
        """Wait until all batches are acknowledged, or the stream is closed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting or self.closed)

    def close(self, failure: BaseException | None = None) -> None:
        """End all waits; other acknowledgements are refused from now on."""
        with self._changed:
            self.closed, self._failure = True, self._failure or failure
            self._changed.notify_all()


class HandOver(Sink):
    """Give each batch to the loop, and promise the acknowledged ones.

    ``each``: the loop finishes a batch before the next is received. ``lingers``: a clean end waits for
    acknowledgements, and sets ``ending`` before.
    """

    def __init__(self, *, records: bool, each: bool, most: int) -> None:
        self.capabilities = SinkCapabilities(records=records)
        self.batches: queue.Queue[StreamedBatch] = queue.Queue(maxsize=1)
        self.ledger = BatchLedger(most)
        self.lingers = False
        self.ending = threading.Event()
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
        self.batches.put(StreamedBatch(**_fields(batch), receipt=receipt))
        if self._each:
            self.ledger.wait_for(receipt)

    def flush(self) -> None:
        """Make nothing durable here: see `acknowledged`."""

    def acknowledged(self) -> int:
        return self.ledger.acknowledged

    def drain(self) -> None:
        self.ending.set()
        if self.lingers:
            self.ledger.wait_for_all()

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


def _fields(batch: Batch) -> dict[str, Any]:
    return {name: getattr(batch, name) for name in Batch.__struct_fields__}


class _LoopPlugin:
    """Register the sink of one loop on the loop's own host."""

    def __init__(self, sink: HandOver) -> None:
        from waltap.plugins.hookspecs import hookimpl

        spec = SinkSpec(name=NAME, summary="A loop in Python.", factory=lambda _p, _c: sink)
        self.register_sinks = hookimpl(lambda: [spec])


class _EngineThread:
    """Run the engine in a thread, and keep its error."""

    def __init__(self, engine: Engine, sink: HandOver) -> None:
        self._engine, self._sink = engine, sink
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="waltap-engine", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with observed(self._engine, self._engine.host):
                self._engine.run()
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self.failure = error
        finally:
            self._sink.ledger.close(self.failure)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> None:
        """End the engine and wait; the last flush has the present acknowledgements."""
        self._sink.ledger.close()
        self._engine.stop()
        while self.running:
            with suppress(queue.Empty):  # who waits to give one more need not
                self._sink.batches.get_nowait()
            self._thread.join(WAKE_S)


class BatchStream(Iterator[StreamedBatch]):
    """Iterate over the batches of a running pipeline.

    As a context manager it ends with its block: open batches at the end of the loop may still be
    acknowledged there.
    """

    def __init__(self, engine: Engine, sink: HandOver, *, auto: bool) -> None:
        self._engine, self._sink, self._auto = engine, sink, auto
        self._thread: _EngineThread | None = None
        self._given: StreamedBatch | None = None
        self._over = False
        self._end: Callable[[], object] = lambda: None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StreamedBatch:
        """Return the next batch. Raises: WaltapError of the pipeline."""
        if self._over:
            raise StopIteration
        if self._thread is None:
            self._thread = _EngineThread(self._engine, self._sink)
            self._end = weakref.finalize(self, self._thread.end)
        if self._auto and self._given is not None:
            with suppress(AcknowledgedTooLate):  # what ended the run is raised below
                self._given.ack()
        self._given = self._next(self._thread)
        if self._given is None:
            self._over = True
            self._raise_failure()
            raise StopIteration
        return self._given

    def _next(self, thread: _EngineThread) -> StreamedBatch | None:
        """Return the next batch, None at the end of the run."""
        sink = self._sink
        while True:
            running, ending = thread.running, sink.lingers and sink.ending.is_set()
            with suppress(queue.Empty):
                return sink.batches.get(timeout=WAKE_S if running and not ending else 0)
            if ending or not running:
                return None

    def __enter__(self) -> Self:
        self._sink.lingers = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()
        if kind is None:
            self._raise_failure()

    def close(self) -> None:
        """End the run: batches without an acknowledgement come again with the next."""
        self._over = True
        self._end()

    def _raise_failure(self) -> None:
        if self._thread is not None and self._thread.failure is not None:
            failure, self._thread.failure = self._thread.failure, None
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
    """Yield the batches of ``profile``: a file, or tables; its sink is unused.

    Relative paths (state, secrets) start at the folder of the file; those of tables at the current
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
    sink = HandOver(records=records, each=auto, most=max(1, unacknowledged))
    host = Host()
    host.register(_LoopPlugin(sink), NAME)
    raw = read_tables(profile) if isinstance(profile, Mapping) else load(Path(profile))
    raw.require_running()
    if isinstance(profile, Mapping):
        log.info("relative paths of this profile start at %s", raw.folder)
    resolved: Profile = resolve(raw, host, sink=NAME, overrides=overrides)
    return BatchStream(Engine(resolved, host, limits=limits), sink, auto=auto)
