"""Batches in a Python loop: the engine in a thread, the caller as its sink.

    for batch in waltap.stream("shop.toml"):
        for record in batch.records or ():
            ...

A batch counts as delivered when the loop asks for the next one (or ends by itself): an exception in
the loop's body leaves it undelivered, and the next run gives it again. The engine pulls nothing while
the body works on a batch; the server is answered meanwhile.
"""

import logging
import queue
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from waltap.config.layers import load, read_tables
from waltap.config.profile import Profile
from waltap.config.resolve import resolve
from waltap.host import Host
from waltap.pipeline.engine import Engine
from waltap.pipeline.limits import Limits
from waltap.sink.sink import Sink, SinkCapabilities
from waltap.source.position import Position
from waltap.specs import SinkSpec
from waltap.transactions.transaction import Batch

__all__ = ["stream"]

log = logging.getLogger(__name__)

NAME = "python_loop"
WAKE_S = 0.2


class HandOver(Sink):
    """Gives each batch to the loop and waits until it is done with it."""

    def __init__(self, *, records: bool) -> None:
        self.capabilities = SinkCapabilities(records=records)
        self.batches: queue.Queue[Batch] = queue.Queue(maxsize=1)
        self.taken = threading.Event()
        self.abandoned = False
        self._delivered: Position | None = None

    def open(self) -> Position | None:
        return None

    def write(self, batch: Batch) -> None:
        if not batch.parts:  # the end of a snapshot: nothing for the loop
            return
        self.taken.clear()
        self.batches.put(batch)
        self.taken.wait()
        if not self.abandoned:
            self._delivered = batch.position

    def flush(self) -> Position | None:
        return self._delivered

    def close(self) -> None:
        self.taken.set()


class _LoopPlugin:
    """Registers the sink of one loop on the loop's own host."""

    def __init__(self, sink: HandOver) -> None:
        from waltap.hookspecs import hookimpl

        spec = SinkSpec(name=NAME, summary="A loop in Python.", factory=lambda _p, _c: sink)
        self.register_sinks = hookimpl(lambda: [spec])


def stream(
    profile: str | Path | Mapping[str, Any],
    *,
    records: bool = True,
    limits: Limits | None = None,
    overrides: Mapping[str, str] | None = None,
) -> Iterator[Batch]:
    """Yield the batches of ``profile``: a file, or tables as in one; its sink is not used.

    Relative paths (state, secrets) start at the folder of the file; those of tables at the current
    directory at the time of the call, which the log names.
    ``records``: render them (`Batch.records`); otherwise only `Batch.parts` is filled. Ends when
    ``limits`` say so, or when the caller breaks out: the batch at hand then counts as delivered
    only if the loop had asked for another. Raises: ConfigurationError, from the call; WaltapError
    from the loop.
    """
    sink = HandOver(records=records)
    host = Host()
    host.register(_LoopPlugin(sink), NAME)
    raw = read_tables(profile) if isinstance(profile, Mapping) else load(Path(profile))
    if isinstance(profile, Mapping):
        log.info("relative paths of this profile start at %s", raw.folder)
    resolved: Profile = resolve(raw, host, sink=NAME, overrides=overrides)
    engine = Engine(resolved, host, limits=limits)
    return _batches(engine, sink)


def _batches(engine: Engine, sink: HandOver) -> Iterator[Batch]:
    """Run ``engine`` in a thread while the caller iterates. Raises: what the engine raises."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            engine.run()
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            failures.append(error)

    thread = threading.Thread(target=run, name="waltap-engine", daemon=True)
    thread.start()
    try:
        while True:
            try:
                batch = sink.batches.get(timeout=WAKE_S)
            except queue.Empty:
                if not thread.is_alive() and sink.batches.empty():
                    break
                continue
            yield batch
            sink.taken.set()
        if failures:
            raise failures[0]
    finally:
        sink.abandoned = True
        engine.stop()
        while thread.is_alive():
            sink.taken.set()
            if not sink.batches.empty():
                sink.batches.get()
            thread.join(WAKE_S)
