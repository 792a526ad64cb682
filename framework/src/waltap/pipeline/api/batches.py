"""Batches in a Python loop: the engine in a thread, the caller as its sink.

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
from waltap.pipeline.runtime.stop_conditions import Limits
from waltap.plugins.host import Host
from waltap.ports.sink.sink import Sink, SinkCapabilities
from waltap.ports.specs import SinkSpec
from waltap.services.telemetry.observers import observed

__all__ = ["AcknowledgedTooLate", "BatchStream", "StreamedBatch", "stream"]

log = logging.getLogger(__name__)

NAME = "python_loop"
WAKE_S = 0.2


class AcknowledgedTooLate(WaltapError):
    """A batch was acknowledged when its stream had ended without it."""

    code = "WT-1203"
    remedy = (
        "The batch comes again with the next run. Acknowledge inside the loop, or behind it within "
        "`with waltap.stream(...) as batches:`."
    )


class StreamedBatch(Batch, kw_only=True):
    """A batch that is to be acknowledged. Any thread may do so, in any order."""

    receipt: "BatchReceipt"

    def ack(self, *, earlier: bool = False) -> None:
        """Say that all that was to be done with the batch is done, durably; ``earlier``: and with all that
        were given before it. The position moves when no earlier batch is left, with the next flush.

        Raises: AcknowledgedTooLate. A second time does nothing.
        """
        self.receipt.give(earlier=earlier)

    @property
    def acknowledged(self) -> bool:
        """Tell whether it is."""
        return self.receipt.given


class BatchReceipt:
    """Whether one batch was acknowledged."""

    __slots__ = ("_ledger", "given", "number")

    def __init__(self, ledger: "BatchLedger", number: int) -> None:
        self._ledger, self.number, self.given = ledger, number, False

    def give(self, *, earlier: bool = False) -> None:
        """Take note of it. Raises: AcknowledgedTooLate."""
        self._ledger.acknowledge(self, earlier=earlier)

    def __repr__(self) -> str:
        return f"<{'' if self.given else 'not '}acknowledged>"


class BatchLedger:
    """Which batches the loop was given, in order, and which of them it has acknowledged."""

    def __init__(self, most: int) -> None:
        """``most`` batches may wait at a time."""
        self._most, self._waiting = most, deque[BatchReceipt]()
        self._changed = threading.Condition()
        self._promised, self._warned = 0, False
        self._failure: BaseException | None = None
        self.closed = False

    @property
    def promised(self) -> int:
        """Return the number of the last batch that is acknowledged with all before it."""
        with self._changed:
            return self._promised

    def enter(self, number: int) -> BatchReceipt:
        """Take note of a batch that the loop is to get."""
        with self._changed:
            receipt = BatchReceipt(self, number)
            self._waiting.append(receipt)
            return receipt

    def acknowledge(self, receipt: BatchReceipt, *, earlier: bool) -> None:
        """Take note that it is done with. Raises: AcknowledgedTooLate."""
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
                self._promised = self._waiting.popleft().number
            self._changed.notify_all()

    def wait_for(self, receipt: BatchReceipt) -> None:
        """Wait until it is acknowledged, or the stream is closed."""
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
        """Wait until nothing is left to acknowledge, or the stream is closed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting or self.closed)

    def close(self, failure: BaseException | None = None) -> None:
        """Let nobody wait any more; what is not acknowledged by now never is."""
        with self._changed:
            self.closed, self._failure = True, self._failure or failure
            self._changed.notify_all()


class HandOver(Sink):
    """Gives each batch to the loop; promises what that has acknowledged.

    ``each``: the loop is done with a batch before the next is received. ``lingers``: a clean end waits for
    what is not acknowledged; ``ending`` tells that it has come so far.
    """

    def __init__(self, *, records: bool, each: bool, most: int) -> None:
        self.capabilities = SinkCapabilities(records=records, acknowledged=True)
        self.batches: queue.Queue[StreamedBatch] = queue.Queue(maxsize=1)
        self.ledger = BatchLedger(most)
        self.lingers = False
        self.ending = threading.Event()
        self._each = each

    def open(self) -> None:
        """Nothing is kept here."""

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
        """Nothing is to be made durable here: see `promised`."""

    def promised(self) -> int:
        return self.ledger.promised

    def settle(self) -> None:
        self.ending.set()
        if self.lingers:
            self.ledger.wait_for_all()

    def close(self) -> None:
        """Nothing is held. The engine may open it again, and what was given may still be acknowledged."""


def _empty(batch: Batch) -> bool:
    """Tell whether there is nothing to be done with a batch: it has the end of a transaction alone, which
    came later than the changes. That depends on the network, what is to be acknowledged does not."""
    ends = all(isinstance(part, TransactionPart) for part in batch.parts)
    return ends and not (batch.events or batch.records)


def _fields(batch: Batch) -> dict[str, Any]:
    return {name: getattr(batch, name) for name in Batch.__struct_fields__}


class _LoopPlugin:
    """Registers the sink of one loop on the loop's own host."""

    def __init__(self, sink: HandOver) -> None:
        from waltap.plugins.hookspecs import hookimpl

        spec = SinkSpec(name=NAME, summary="A loop in Python.", factory=lambda _p, _c: sink)
        self.register_sinks = hookimpl(lambda: [spec])


class _EngineThread:
    """The engine's thread, and what it ended with."""

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
        """Have the engine end, and wait for it; the last flush counts what is acknowledged by now."""
        self._sink.ledger.close()
        self._engine.stop()
        while self.running:
            with suppress(queue.Empty):  # who waits to give one more need not
                self._sink.batches.get_nowait()
            self._thread.join(WAKE_S)


class BatchStream(Iterator[StreamedBatch]):
    """The batches of a pipeline that runs while somebody iterates; at most one thread does.

    As a context manager it ends with its block: what the loop left unacknowledged when it came to its end
    may still be acknowledged there.
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
        """Raises: WaltapError, what the pipeline failed with."""
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
        """End the run: what is not acknowledged comes again with the next one."""
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
    """Yield the batches of ``profile``: a file, or tables as in one; its sink is not used.

    Relative paths (state, secrets) start at the folder of the file; those of tables at the current
    directory at the time of the call, which the log names.
    ``records``: render them (`Batch.records`); otherwise only `Batch.parts` is filled. ``acknowledge``:
    auto, a batch is acknowledged when the loop asks for the next one, and nothing is received before;
    explicit, by `StreamedBatch.ack` alone: then up to ``unacknowledged`` batches are given, and no more
    until some are acknowledged; one without changes and records, the end of a transaction that came by
    itself, needs no acknowledgement. Ends when ``limits`` say so, or when the caller breaks out: what is
    not acknowledged then comes again. Raises: ConfigurationError, from the call; WaltapError from the
    loop.
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
