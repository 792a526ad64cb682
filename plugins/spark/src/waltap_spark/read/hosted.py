"""Run a profile's engine inside a Spark reader.

The engine writes to a private change log, from which Spark reads a failed batch again.
The slot advances only to the position that Spark has committed, so the server still has all
uncommitted changes if the private log is lost.
"""

import datetime as dt
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa

from waltap.base.files.properties import StorageProperties
from waltap.config.layers import load
from waltap.config.resolve import resolve
from waltap.errors import WaltapError
from waltap.pipeline.api.in_process import Pipeline, PipelineEnded
from waltap.pipeline.engine.build import PipelineStages
from waltap.pipeline.runtime.lock import PipelineLock, PipelineRunning
from waltap.pipeline.runtime.run_state import Limits
from waltap.plugins.host import Host
from waltap.ports.sink.sink import SinkContext
from waltap.ports.source.connector import MadeByRun
from waltap.ports.source.roles import planned
from waltap_sinks.changelog import NOTHING, ChangeLog, ChangeLogProperties, FileStore, LogPosition
from waltap_sinks.changelog.manifest import bucket_of
from waltap_sinks.changelog.table_version import TableVersion
from waltap_spark.driver.settings import settings_of
from waltap_spark.errors import CapturedByAnotherProcess

log = logging.getLogger(__name__)

READER: Final = "spark"
# Retention of committed segments, for an operator who sets a checkpoint back by hand.
RETENTION: Final = dt.timedelta(hours=2)

EXPIRE_EVERY_S: Final = 60.0
# Time to wait for the engine of a query that is just ending.
PATIENCE_S: Final = 60.0

POLL_S: Final = 0.05
# States of a run that has the pipeline's lock.
UNDER_LOCK: Final = frozenset(("snapshot", "streaming"))


class HostedEngine:
    """The engine of the profile in ``file``; picklable before `begin`.

    ``folder`` is the folder of change logs. "" means the profile's own: its sink, if that is a
    change log, or a folder below its state.
    """

    def __init__(self, file: str, folder: str = "") -> None:
        """Raises: ConfigurationError, PluginError."""
        # the profile's sink may need an extra that executors lack
        own = f"changelog:{folder}" if folder else None
        profile = resolve(load(Path(file)), Host(), sink=own)
        self.file, self.name, self.own = file, profile.name, False
        # Settings of the private log's store. Tasks get them by pickle, so no plan or log shows
        # them.
        self.storage: StorageProperties | None = None
        self._state_dir = profile.engine.state_dir / self.name
        self._standby = profile.engine.standby
        sink = profile.sink.properties
        if folder:
            self.location = f"{folder.rstrip('/')}/{self.name}"
        elif isinstance(sink, ChangeLogProperties):
            self.location, self.own = sink.path, True
            if "://" in sink.path and settings_of(sink, StorageProperties):
                self.storage = sink
        else:
            self.location = str(self._state_dir / "spool")
        # Whether a run with an end has reached it: the private log has everything of before its
        # start.
        self.ended = False
        self._pipeline: Pipeline | None = None
        self._limits: Limits | None = None
        self._until = 0.0
        self._parent = os.getpid()
        self._released = NOTHING
        self._next_expiry = 0.0

    @property
    def log(self) -> ChangeLog:
        """Return the private log, which may not exist yet."""
        return ChangeLog(FileStore(self.location, self.storage))

    @property
    def _sink(self) -> str | None:
        """Return the engine's sink; None means the profile's own."""
        return None if self.storage is not None else f"changelog:{self.location}"

    def catalogue(self, wants: Callable[[str], bool]) -> dict[str, pa.Schema]:
        """Query the server for the wanted captured tables.

        Name → columns as in the private log. Raises: WaltapError.
        """
        stages = self._stages()
        connector = stages.open_connector(MadeByRun())
        try:
            context = SinkContext(
                pipeline=self.name,
                state_dir=Path(),
                types=stages.types,
                describe=stages.relations.describe,
                identity=stages.relations.identity,
                capture=stages.capture,
            )
            return {
                each.relation.name: TableVersion(each.relation, context).codec.schema
                for each in planned(connector, stages.store.load()).tables
                if wants(each.relation.name)
            }
        finally:
            connector.close()

    def _stages(self) -> PipelineStages:
        host = Host()
        profile = resolve(load(Path(self.file)), host, sink=self._sink)
        return PipelineStages(profile, host)

    @property
    def begun(self) -> bool:
        return self._pipeline is not None

    def begin(self, *, ends: bool, waits: bool = True) -> None:
        """Start capturing.

        With ``ends`` up to the server's present position. With ``waits`` the slot is confirmed by
        `release`, otherwise as soon as the private log is durable. Raises: WaltapError,
        CapturedByAnotherProcess.
        """
        # the private log must reach the stored offset
        stages = self._stages()
        offset = stages.store.load()
        captured = offset is not None and offset.snapshot is None and offset.sink
        if captured and captured != stages.destination:
            text = (
                f"{self.name} was captured into {captured}, and this run has {stages.destination}"
            )
            raise CapturedByAnotherProcess(text, file=self.file)
        self._limits = Limits(until_idle=0.0) if ends else None
        self._until = time.monotonic() + PATIENCE_S
        # If Spark dies, this process sees another parent, and nothing else.
        self._parent = os.getppid()
        self._pipeline = Pipeline(
            self.file, sink=self._sink, confirmable=self._confirmable if waits else None
        )
        self._pipeline.start(self._limits)

    def check(self) -> None:
        """Check that the engine runs. Raises: WaltapError, its failure."""
        pipeline = self._pipeline
        if pipeline is None or self.ended or pipeline.running:
            return
        try:
            pipeline.stop()
        # The engine of the previous query may still end: its Python process outlives the query.
        except PipelineRunning:
            if time.monotonic() >= self._until:
                raise
            pipeline.start(self._limits)
            return
        if self._limits is None:
            raise PipelineEnded(f"pipeline {self.name} has ended")
        self.ended = True

    def wait(self) -> None:
        """Wait a moment. Raises: PipelineEnded without the Spark parent."""
        if os.getppid() != self._parent:
            raise PipelineEnded("Spark is gone")
        threading.Event().wait(POLL_S)

    def behind(self) -> int | None:
        """Return the bytes of WAL not yet read, None if unknown."""
        if self._pipeline is None:
            return None
        return next((each.lag_bytes for each in self._pipeline.status().partitions), None)

    def stop(self) -> None:
        """Stop the engine; captured changes become durable first."""
        if self._pipeline is None:
            return
        try:
            self._pipeline.stop()
        except WaltapError as error:
            log.warning("%s", error)

    def release(self, log_position: LogPosition, *, spent: LogPosition) -> None:
        """Let the slot advance to ``log_position``, which Spark has committed.

        Segments up to ``spent``, the checkpoint's position, may be removed.
        """
        self._released = max(self._released, log_position)
        now = time.monotonic()
        if self.own or now < self._next_expiry or not self.log.exists():
            return
        try:
            # Without the pipeline's lock another query may read this private log, whose segments
            # must stay.
            pipeline = self._pipeline
            if pipeline and pipeline.running and pipeline.status().state in UNDER_LOCK:
                self._expire(spent)
            elif self.ended and not self._standby:
                with PipelineLock(self._state_dir):
                    self._expire(spent)
            else:
                return
        except WaltapError as error:
            log.warning("the private log keeps what it could do without: %s", error)
        self._next_expiry = now + EXPIRE_EVERY_S

    def _expire(self, spent: LogPosition) -> None:
        readers = self.log.readers
        readers.register(READER, spent, by="Spark")
        readers.advance(READER, spent)
        self.log.expire(spent, bucket_of(dt.datetime.now(dt.UTC) - RETENTION))

    def _confirmable(self, lsn: int) -> int:
        # LSNs of two epochs do not compare: nothing is confirmed until Spark reaches the newest
        # one.
        released, last = self._released, self.log.last()
        if last is None or last.log_position <= released:
            return lsn
        return min(lsn, released.end_lsn) if last.log_position.epoch == released.epoch else 0
