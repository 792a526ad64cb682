"""The engine of a profile inside a reader: it captures into a change log, the spool, which is read.

The spool is what makes a batch readable again, whatever fails; it is a change log like any other. The slot
is confirmed as far as Spark has committed: until then the server could give it all again.
"""

import datetime as dt
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from waltap.base.files.properties import StorageProperties
from waltap.base.property import declarations
from waltap.config.layers import load
from waltap.config.resolve import resolve
from waltap.errors import WaltapError
from waltap.pipeline.api.in_process import Pipeline, PipelineEnded
from waltap.pipeline.runtime.lock import PipelineLock, PipelineRunning
from waltap.pipeline.runtime.stop_conditions import Limits
from waltap.pipeline.setup.build import PipelineStages, build
from waltap.plugins.host import Host
from waltap.ports.sink.sink import SinkContext
from waltap.ports.source.connector import MadeByRun
from waltap_sinks.changelog import NOTHING, ChangeLog, ChangeLogProperties, FileStore, LogPosition
from waltap_sinks.changelog.manifest import bucket_of
from waltap_sinks.changelog.table_version import TableVersion
from waltap_spark.source.errors import CapturedElsewhere

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["READER", "HostedEngine"]

log = logging.getLogger(__name__)

READER: Final = "spark"
KEPT: Final = dt.timedelta(hours=2)
"""How long the spool keeps what is committed, for who sets a checkpoint back by hand."""

RETIRE_EVERY_S: Final = 60.0
PATIENCE_S: Final = 60.0
"""How long to wait for the engine of a query that is just ending."""

LOOK_S: Final = 0.05
UNDER_LOCK: Final = frozenset(("snapshot", "streaming"))
"""States that a run comes to when it has the pipeline's lock."""


class HostedEngine:
    """The engine of the profile in ``file``. Until `begin` it is a few texts, and may be pickled.

    ``spool``: the folder of change logs, "" for the profile's own: its sink, where that is a change log,
    or a folder beside its state.
    """

    def __init__(self, file: str, spool: str = "") -> None:
        """Raises: ConfigurationError, PluginError."""
        own = (
            f"changelog:{spool}" if spool else None
        )  # then nobody asks what the profile's sink needs
        profile = resolve(load(Path(file)), Host(), sink=own)
        self.file, self.name, self.own = file, profile.name, False
        self.storage: StorageProperties | None = None
        """How the spool is reached, also by tasks, to which it goes as they do: no plan or log has it."""
        self._state_dir = profile.engine.state_dir / self.name
        self._standby = profile.engine.standby
        sink = profile.sink.properties
        if spool:
            self.location = f"{spool.rstrip('/')}/{self.name}"
        elif isinstance(sink, ChangeLogProperties):
            self.location, self.own, self.storage = sink.path, True, _storage(sink)
        else:
            self.location = str(self._state_dir / "spool")
        self.ended = False
        """A run with an end has come to it: the spool has all that there was at its start."""
        self._pipeline: Pipeline | None = None
        self._limits: Limits | None = None
        self._until = 0.0
        self._parent = os.getpid()
        self._released = NOTHING
        self._next_retire = 0.0

    @property
    def log(self) -> ChangeLog:
        """Return the spool, which may not be there yet."""
        return ChangeLog(FileStore(self.location, self.storage))

    @property
    def _sink(self) -> str | None:
        """Return the sink of the engine, None: the profile's own, with all that it says."""
        return None if self.storage is not None else f"changelog:{self.location}"

    # --- the catalogue ----------------------------------------------------------------------------

    def catalogue(self, wants: Callable[[str], bool]) -> "dict[str, pa.Schema]":
        """Ask the server for the captured tables that are wanted: name → columns as the spool will have
        them. Raises: WaltapError."""
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
                for each in connector.plan(stages.store.load()).tables
                if wants(each.relation.name)
            }
        finally:
            connector.close()

    def _stages(self) -> PipelineStages:
        host = Host()
        profile = resolve(load(Path(self.file)), host, sink=self._sink)
        return build(profile, host, run_id="")

    # --- its life ---------------------------------------------------------------------------------

    @property
    def begun(self) -> bool:
        """Tell whether `begin` was called."""
        return self._pipeline is not None

    def begin(self, *, ends: bool, waits: bool = True) -> None:
        """Start capturing; ``ends``: up to what there is now. ``waits``: the slot for `release`, else it
        follows what is durable in the spool, as that of any engine. Raises: WaltapError, CapturedElsewhere
        among them."""
        self._require_all()
        self._limits = Limits(until_idle=0.0) if ends else None
        self._until = time.monotonic() + PATIENCE_S
        self._parent = os.getppid()
        self._pipeline = Pipeline(
            self.file,
            sink=self._sink,
            confirmable=self._confirmable if waits else None,
        )
        self._pipeline.start(self._limits)

    def _require_all(self) -> None:
        """See that the spool has what was captured up to the stored offset."""
        stages = self._stages()
        offset = stages.store.load()
        if offset is None or offset.snapshot is not None:
            return
        if offset.sink not in {"", stages.destination}:
            text = (
                f"{self.name} was captured into {offset.sink}, and {stages.destination} is to go on"
            )
            raise CapturedElsewhere(text, file=self.file)

    def look(self) -> None:
        """See whether it runs. Raises: WaltapError, what it failed with."""
        pipeline = self._pipeline
        if pipeline is None or self.ended or pipeline.running:
            return
        try:
            pipeline.stop()
        except PipelineRunning:
            if time.monotonic() >= self._until:
                raise
            pipeline.start(self._limits)
            return
        if self._limits is None:
            raise PipelineEnded(f"pipeline {self.name} has ended")
        self.ended = True

    def wait(self) -> None:
        """Wait a moment. Raises: PipelineEnded where Spark, which had started this process, is gone."""
        if os.getppid() != self._parent:
            raise PipelineEnded("Spark is gone")
        threading.Event().wait(LOOK_S)

    def behind(self) -> int | None:
        """Return how many bytes of WAL the engine has not read, None where nobody knows."""
        if self._pipeline is None:
            return None
        return next((each.lag_bytes for each in self._pipeline.status().partitions), None)

    def stop(self) -> None:
        """End the engine: what was captured is made durable first."""
        if self._pipeline is None:
            return
        try:
            self._pipeline.stop()
        except WaltapError as error:
            log.warning("%s", error)

    # --- what Spark is done with ------------------------------------------------------------------

    def release(self, mark: LogPosition, *, spent: LogPosition) -> None:
        """Let the slot move on to ``mark``, where Spark wants nothing more of what lies before; old
        segments may go up to ``spent``, where the checkpoint is: a query goes on from there."""
        self._released = max(self._released, mark)
        now = time.monotonic()
        if self.own or now < self._next_retire or not self.log.exists():
            return
        try:
            if self._locked:
                self._retire(spent)
            elif self.ended and not self._standby:
                with PipelineLock(self._state_dir):
                    self._retire(spent)
            else:
                return
        except WaltapError as error:
            log.warning("the spool keeps what it could do without: %s", error)
        self._next_retire = now + RETIRE_EVERY_S

    @property
    def _locked(self) -> bool:
        """Tell whether the engine has the pipeline's lock. Who has not may be a second query beside the
        one that the spool is for, and throws nothing away."""
        pipeline = self._pipeline
        return pipeline is not None and pipeline.running and pipeline.status().state in UNDER_LOCK

    def _retire(self, spent: LogPosition) -> None:
        readers = self.log.readers
        readers.register(READER, spent, by="Spark")
        readers.advance(READER, spent)
        self.log.expire(spent, bucket_of(dt.datetime.now(dt.UTC) - KEPT))

    def _confirmable(self, lsn: int) -> int:
        released, last = self._released, self.log.last()
        if last is None or last.mark <= released:
            return lsn
        return min(lsn, released.end_lsn) if last.mark.epoch == released.epoch else 0


def _storage(sink: ChangeLogProperties) -> StorageProperties | None:
    """Return how the sink says that its store is reached; None where it leaves that to the environment."""
    fields = [each for each in declarations(StorageProperties) if each.family is None]
    said = {each.name: getattr(sink, each.field) for each in fields}
    if "://" not in sink.path or all(said[each.name] == each.default for each in fields):
        return None
    return StorageProperties.model_validate(said)
