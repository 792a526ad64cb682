"""A snapshot that tasks of Spark read of a real server, in this process."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database

from waltap.changes.transactions.transaction import Batch, SnapshotRows
from waltap.pipeline.engine.build import PipelineStages
from waltap.ports.sink.sink import SinkContext
from waltap.ports.snapshot import SnapshotChunk
from waltap.ports.source.connector import MadeByRun
from waltap_sinks.changelog import ChangeLog, ChangeLogProperties, ChangeLogSink
from waltap_spark.apply.applier import OutputApplier
from waltap_spark.apply.snapshot_splits import TableSplits, splits_of
from waltap_spark.config.options import ApplyOptions
from waltap_spark.formats.choice import PARQUET, FormatChoice
from waltap_spark.read.live import LiveTables
from waltap_spark.session.session import prepare
from waltap_spark.state.output import SparkOutput


class AssignedSnapshots:
    """Snapshots of ``database``, one after the other, each by an engine of its own; and their tables."""

    def __init__(
        self,
        database: Database,
        folder: Path,
        spark: Any,
        table_format: str = PARQUET,
        **options: Any,
    ) -> None:
        self.pipeline = PipelineRig(database, folder)
        self.folder, self.spark = folder, prepare(spark)
        spark.conf.set("spark.sql.timeType.enabled", "true")  # plans are checked in any session
        self.options, self.choice = ApplyOptions(**options), FormatChoice(table_format)
        self.log, self.output = ChangeLog(str(folder / "log")), SparkOutput(str(folder / "out"))
        self._there: dict[str, TableSplits] = {}
        self._applier: OutputApplier | None = None

    @contextlib.contextmanager
    def engine(self, name: str) -> Iterator[Sequence[SnapshotChunk]]:
        """Keep a snapshot called ``name`` while the block lasts; the log then names it."""
        host, _ = self.pipeline.host()
        stages = PipelineStages(self.pipeline.profile(host), host, run_id=name)
        connector = stages.open_connector(MadeByRun())
        context = SinkContext(
            pipeline="p",
            state_dir=self.folder,
            types=stages.types,
            describe=stages.relations.describe,
            identity=stages.relations.identity,
            capture=stages.capture,
        )
        sink = ChangeLogSink(ChangeLogProperties(path=str(self.folder / "log")), context)
        try:
            start = connector.prepare(None)
            chunks = connector.chunks(start)
            self._there[name] = splits_of(chunks, context)
            sink.open()
            position = start.offset.sole.position
            relations = {chunk.relation.table_id: chunk.relation for chunk in chunks}
            for number, relation in enumerate(relations.values()):
                piece = SnapshotRows(
                    relation=relation,
                    rows=[],
                    ts=0,
                    lsn=position.end_lsn,
                    xid=None,
                    opens=not number,
                    complete=True,
                    ends_chunk=True,
                    external_snapshot=name,
                )
                sink.write(Batch(parts=[piece], position=position, events=0, snapshot=True))
            sink.flush()
            yield chunks
        finally:
            self._there.pop(name, None)
            sink.close()
            connector.undo()
            connector.close()

    def apply(self) -> None:
        """What a driver process does that starts now."""
        if self._applier is not None:
            self._applier.close()
        reported = self.options, self.choice, self._there.get
        self._applier = OutputApplier(self.spark, self.log, self.output, *reported)
        self._applier.open()
        self._applier.apply(list(self.log.manifests(self._applier.state.log_position)))

    def close(self) -> None:
        if self._applier is not None:
            self._applier.close()

    @property
    def tables(self) -> LiveTables:
        return LiveTables(self.spark, self.output)
