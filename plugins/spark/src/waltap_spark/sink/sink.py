"""The Spark sink: a change log, applied by a Spark process.

The engine's process never imports pyspark. The Spark process is a child: if the engine ends in any way,
it applies the rest of the change log and ends too. If it dies, the engine starts it again, and the
tables continue after their last commit.
"""

import logging
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from waltap.base.files.store import FileStore
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import Batch
from waltap.errors import SinkError
from waltap.ports.sink.refusal import FailStop
from waltap.ports.sink.roles import DownstreamProgress
from waltap.ports.sink.sink import SinkContext
from waltap.ports.snapshot.chunk_source import SnapshotChunk
from waltap.ports.source.connector import PreflightCheck
from waltap_sinks.changelog import ChangeLog, ChangeLogProperties, ChangeLogSink
from waltap_spark.apply.snapshot_splits import NO_MORE, packed, splits_of
from waltap_spark.config.properties import SparkProperties
from waltap_spark.formats.choice import FormatChoice
from waltap_spark.session.java import require_java, require_pyspark
from waltap_spark.sink.output_monitor import AppliedSoFar
from waltap_spark.sink.process import DriverProcess
from waltap_spark.state.output import applied_by_all

log = logging.getLogger(__name__)


class SparkSink(ChangeLogSink):
    """A change log with an applier; exactly once, single-threaded."""

    # Tables whose rows Spark tasks are reading, by their numbers in the source.
    _awaited: "dict[int, str] | None" = None

    _streams = False

    def __init__(self, properties: SparkProperties, context: SinkContext) -> None:
        if "://" not in properties.path:
            path = str(Path(properties.path).absolute())
            properties = properties.model_copy(update={"path": path})
        changelog = properties.changelog
        super().__init__(
            ChangeLogProperties(path=changelog, compression=properties.compression),
            context,
            store=FileStore(changelog, properties),
        )
        self._spark = properties
        self._fail_stop = FailStop(properties.path)
        self._applied = AppliedSoFar(properties)
        self._driver: DriverProcess | None = None
        # Whether the run received a batch: `close` then waits for Spark.
        self._went = False
        self._by_executors = properties.snapshot_readers == "executors"
        if self._by_executors:  # tasks read the exported snapshot, which ends with the engine
            self.capabilities = replace(
                self.capabilities, resumes_snapshots=False, restarts_tables=False
            )
        self._choice = FormatChoice(properties.format, properties.format_properties)
        if properties.applier == "embedded":
            log_file = context.state_dir / "spark.log"
            self._driver = DriverProcess(properties, log_file, context.time_left)

    def check(self) -> list[PreflightCheck]:
        checks = super().check()
        if self._driver is not None:
            checks.append(PreflightCheck.ok("sink spark", self._required()))
        return checks

    def _required(self) -> str:
        """Return the Java and Spark to run. Raises: SinkError, ConfigurationError."""
        java, spark = require_java(), require_pyspark()
        self._choice.settings(spark, self._spark.settings)
        output = self._spark.output()
        self._choice.require_format_of(output.state(), output.location)
        return f"{java}, pyspark {spark}"

    def open(self) -> Position | None:
        if self._driver is not None:
            self._required()
        stored_position = super().open()
        # After the log, so that a refused log (of another pipeline) starts no JVM.
        if self._driver is not None:
            self._driver.start()
        return stored_position

    def write(self, batch: Batch) -> None:
        self._went = True
        super().write(batch)

    def flush(self) -> Position | None:
        self._went = True
        with self._fail_stop:
            position = super().flush()
            if self._driver is not None:
                self._driver.restart_dead()
        return position

    def maintain(self) -> None:
        """Check that Spark runs, also in an idle stream.

        Raises: ApplierFailed, JvmEnded.
        """
        self._went = True
        with self._fail_stop:
            if self._driver is not None:
                self._driver.restart_dead()
                if not self._streams:
                    self._streams = True
                    # A driver that waits for the chunks of an earlier run reports it then.
                    self._driver.give(NO_MORE)

    def wants_chunks(self) -> bool:
        """Return whether Spark tasks read the snapshot, an output's first."""
        if not self._by_executors:
            return False
        last = ChangeLog(self._store).last()
        first = last is None or (
            last.snapshot is not None
            and not last.snapshot.complete
            and bool(last.external_snapshots)
        )
        if not first:
            log.info(
                "the engine reads the snapshot: executors read the first one of an output alone"
            )
        return first

    def assign_splits(self, chunks: Sequence[SnapshotChunk]) -> str:
        """Pass the chunks to the Spark process.

        Raises: errors of the type mapping.
        """
        assert self._driver is not None
        name = str(uuid.uuid4())
        self._driver.give(packed(name, splits_of(chunks, self._context)))
        self._awaited = {chunk.relation.oid: chunk.relation.name for chunk in chunks}
        return name

    def split_rows(self) -> Mapping[str, int] | None:
        """Return the rows by table once all are committed, else None.

        Raises: ChunkSourceUnreachable, ApplierFailed.
        """
        assert self._driver is not None
        assert self._awaited is not None
        with self._fail_stop:
            self._driver.restart_dead()  # a driver that died would never commit
            state = self._spark.output().state() if self._awaited else None
            if self._awaited and (state is None or state.log_position < self.log_position):
                return None
        states = () if state is None else state.tables.values()
        rows = {each.oid: each.rows_of_splits for each in states}
        awaited, self._awaited = self._awaited, None
        self._driver.give(NO_MORE)  # it forgets the chunks, which contain the password
        return {name: rows[oid] for oid, name in awaited.items() if oid in rows}

    def downstream_progress(self) -> Sequence[DownstreamProgress]:
        return [self._applied.downstream_progress(self.log_position)]

    def close(self) -> None:
        """Wait until Spark has applied everything; may be called twice."""
        super().close()
        if self._driver is None:
            return
        # The exported snapshot ends with the engine, so Spark cannot read the rest.
        if self._awaited is not None or (not self._went and self._all_applied()):
            self._driver.abandon()
        elif self._went or sys.exc_info()[0] is None:
            self._driver.finish()
        else:  # the engine ends by an error, before anything came
            self._driver.leave()

    def _all_applied(self) -> bool:
        try:
            last, state = ChangeLog(self._store).last(), self._spark.output().state()
        except SinkError:
            return False
        return last is None or (state is not None and applied_by_all(state) == last.log_position)
