"""Following a change log with Structured Streaming.

The manifests are a stream of small text files: Spark sees new ones, cuts them into micro-batches and
remembers in its checkpoint which it has given out. What was applied, however, is known by the
output's own commits alone; the checkpoint only saves looking at old manifests again, and may be lost.
Files are listed in no useful order, so each batch is put in order by its marks; where one is missing,
it is read from the log itself.
"""

import contextlib
import datetime as dt
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from waltap.errors import WaltapError
from waltap_sinks.changelog import ChangeLog, Manifest
from waltap_sinks.changelog.manifest import parse_manifest
from waltap_spark.applier import Applier
from waltap_spark.output import Output

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["FollowOptions", "Follower"]

log = logging.getLogger(__name__)

CHECKPOINTS: Final = "_waltap/checkpoint"
BATCHES_PER_CHECKPOINT: Final = 20_000
"""Spark's list of files seen grows for ever; after so many batches a new checkpoint begins."""

LOOK_S: Final = 0.1
RETIRE_EVERY_S: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowOptions:
    """``trigger_ms``: how often Spark looks for manifests. ``batch_files`` and ``batch_rows``: most
    that one commit takes. ``retention_h``: how long what was applied stays in the change log."""

    trigger_ms: int = 200
    batch_files: int = 500
    batch_rows: int = 5_000_000
    retention_h: float = 2.0


class Follower:
    """Applies a change log as it grows, until told to stop. Single use."""

    def __init__(
        self,
        spark: "SparkSession",
        changelog: ChangeLog,
        output: Output,
        applier: Applier,
        options: FollowOptions | None = None,
    ) -> None:
        self._spark, self._log, self._output, self._applier = spark, changelog, output, applier
        self._options = options or FollowOptions()
        self._failure: Exception | None = None
        self._batches = 0
        self._next_retire = time.monotonic() + RETIRE_EVERY_S

    def follow(self, stopping: Callable[[], bool]) -> None:
        """Apply until ``stopping`` says so, and then what the log holds by then.

        Raises: WaltapError, when a batch cannot be applied; the tables stand at the last commit.
        """
        while True:
            query = self._start()
            try:
                ended = self._watch(query, stopping)
            finally:
                with contextlib.suppress(Exception):  # the query's own failure is told by _watch
                    query.stop()
            if ended:
                return

    def catch_up(self) -> None:
        """Apply what the log holds now, without streaming."""
        for part in self._cut(list(self._log.manifests(self._applier.state.mark))):
            self._applier.apply(part)

    # --- the streaming query ----------------------------------------------------------------------

    def _start(self) -> "StreamingQuery":
        self._log.store.make_folder("manifests")
        prefix = "file://" if self._log.store.local else ""
        manifests = (
            self._spark.readStream.format("text")
            .option("wholetext", "true")
            .option("recursiveFileLookup", "true")
            .option("ignoreMissingFiles", "true")
            .option("maxFilesPerTrigger", str(self._options.batch_files))
            .load(prefix + self._log.store.uri("manifests"))
        )
        self._batches = 0
        return (
            manifests.writeStream.foreachBatch(self._batch)
            .option("checkpointLocation", self._output.uri(self._checkpoint()))
            .trigger(processingTime=f"{self._options.trigger_ms} milliseconds")
            .queryName("waltap")
            .start()
        )

    def _checkpoint(self) -> str:
        """Return the checkpoint to use; one that has grown too long is replaced."""
        store = self._output.store
        numbers = sorted(int(name) for name in store.folders(CHECKPOINTS) if name.isdigit())
        number = numbers[-1] if numbers else 1
        done = [name for name in store.names(f"{CHECKPOINTS}/{number}/commits") if name.isdigit()]
        if done and max(map(int, done)) >= BATCHES_PER_CHECKPOINT:
            number += 1
        for old in numbers:
            if old != number:
                store.delete_folder(f"{CHECKPOINTS}/{old}")
        return f"{CHECKPOINTS}/{number}"

    def _watch(self, query: "StreamingQuery", stopping: Callable[[], bool]) -> bool:
        """Wait for the end of ``query``; False when it should start again with a new checkpoint."""
        target = None
        while True:
            if not query.isActive:
                self._raise(query)
                return target is not None
            if target is None and stopping():
                last = self._log.last()
                target = None if last is None else last.mark
                if target is None:
                    return True
            if target is not None and self._applier.state.mark >= target:
                return True
            if target is None and self._batches >= BATCHES_PER_CHECKPOINT:
                return False
            self._retire()
            time.sleep(LOOK_S)

    def _raise(self, query: "StreamingQuery") -> None:
        if self._failure is not None:
            raise self._failure
        failure = query.exception()
        if failure is not None:
            raise failure

    def _batch(self, frame: "DataFrame", _number: int) -> None:
        """Apply one micro-batch of manifests."""
        try:
            found = [parse_manifest(row[0], "a manifest") for row in frame.collect()]
            for part in self._cut(self._chain(found)):
                self._applier.apply(part)
            self._batches += 1
        except Exception as error:
            self._failure = error
            raise

    def _chain(self, found: list[Manifest]) -> list[Manifest]:
        """Return the manifests that follow what was applied, in order and without a gap."""
        state = self._applier.state.mark
        fresh = sorted((step for step in found if step.mark > state), key=lambda step: step.mark)
        previous = state
        for step in fresh:
            if step.previous != previous:
                return list(self._log.manifests(state, fresh[-1].mark))
            previous = step.mark
        return fresh

    def _cut(self, manifests: Sequence[Manifest]) -> Iterator[list[Manifest]]:
        """Cut ``manifests`` so that one commit does not take too many rows."""
        part: list[Manifest] = []
        rows = 0
        for manifest in manifests:
            if part and rows + manifest.rows > self._options.batch_rows:
                yield part
                part, rows = [], 0
            part.append(manifest)
            rows += manifest.rows
        if part:
            yield part

    def _retire(self) -> None:
        """Remove from the change log what was applied long ago."""
        now = time.monotonic()
        if now < self._next_retire:
            return
        self._next_retire = now + RETIRE_EVERY_S
        state = self._applier.state
        if any(table.staged for table in state.tables.values()):
            return  # an unfinished snapshot still lies there
        limit = dt.datetime.now(dt.UTC) - dt.timedelta(hours=self._options.retention_h)
        try:
            self._log.retire(state.mark, limit.strftime("%Y%m%dT%H"))
        except WaltapError as error:
            log.warning("retiring failed", extra={"error_code": error.code})
