"""Send OpenLineage events with the tables and columns of a run.

This needs an extra. The run sends START when it streams or reads a snapshot, RUNNING when tables are
new or changed, and COMPLETE or FAIL at its end. An event names only its new tables, because
consumers combine the events of a run. A thread sends the events; an unreachable server does not stop
the pipeline (`LineageSender`).
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

from waltap.base.plugin_errors import needing
from waltap.changes.capture.capture import CaptureRules
from waltap.changes.decode.relation import Column, Relation, shown_type
from waltap.changes.transactions.position import Positions
from waltap.errors import WaltapError
from waltap.plugins.hookspecs import hookimpl
from waltap.version import VERSION

if TYPE_CHECKING:
    from waltap.services.monitor.status import ObservedEngine


log = logging.getLogger(__name__)

# Queue OpenLineage events and send them in a thread.
#
# The queue does not grow during an outage. A run starts once and ends once. Changes in between
# are combined into one event with the last relation of each table that changed since the last
# delivery.

RUNNING: Final = "RUNNING"
END_S: Final = 5.0
"""How long the end of a run waits for the remaining events."""
RETRY_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageEvent:
    """One event in the life of a run."""

    # START, RUNNING, COMPLETE or FAIL
    kind: str
    # time of the event, not of its delivery
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat())
    # of the run
    facets: Mapping[str, Any] = field(default_factory=dict)


class LineageSender:
    """Send events in order, each until it arrives.

    ``send`` gets an event and the tables that are new or changed. An event whose delivery failed is
    sent again after ``retry_s``.
    """

    def __init__(
        self,
        send: Callable[[LineageEvent, Collection[Relation]], None],
        *,
        retry_s: float = RETRY_S,
    ) -> None:
        self._send, self._retry_s = send, retry_s
        self._changed = threading.Condition()
        self._waiting: list[LineageEvent] = []
        self._sending: LineageEvent | None = None
        """The event in delivery; a table that changes now needs another event."""

        self._shapes: dict[str, Relation] = {}
        self._finished = self._away = False
        self._thread = threading.Thread(target=self._run, name="waltap-lineage", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_details: object) -> None:
        """Send the waiting events once and stop."""
        with self._changed:
            self._finished = True
            self._changed.notify()
        self._thread.join(END_S)
        if undelivered := len(self.waiting):
            log.warning("OpenLineage: %d events of this run were not delivered", undelivered)

    @property
    def waiting(self) -> Collection[LineageEvent]:
        """Return the undelivered events, the oldest first."""
        with self._changed:
            on_its_way = () if self._sending is None else (self._sending,)
            return (*on_its_way, *self._waiting)

    def shape(self, relation: Relation) -> None:
        with self._changed:
            self._shapes[relation.name] = relation

    def put(self, happening: LineageEvent) -> None:
        with self._changed:
            # a RUNNING event that waits already will name all changed tables
            if happening.kind != RUNNING or not self._runs_wait():
                self._waiting.append(happening)
                self._changed.notify()

    def _runs_wait(self) -> bool:
        return any(each.kind == RUNNING for each in self._waiting)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._finished:
                    self._changed.wait()
                if not self._waiting:
                    return
                last, happening = self._finished, self._waiting.pop(0)
                self._sending = happening
                shapes, self._shapes = self._shapes, {}
            try:
                # a RUNNING event without tables has nothing to report
                if shapes or happening.kind != RUNNING:
                    self._send(happening, shapes.values())
            except Exception as error:  # noqa: BLE001 - whatever a transport raises
                self._failed(error, happening, shapes)
                # the end of the run waits for one try only
                if last:
                    return
            else:
                with self._changed:
                    self._sending = None
                if self._away:
                    self._away = False
                    log.info("OpenLineage: events are delivered again")

    def _failed(
        self, error: Exception, happening: LineageEvent, shapes: Mapping[str, Relation]
    ) -> None:
        if not self._away:
            self._away = True
            log.warning(
                "OpenLineage: an event was not delivered, and is tried again: %s",
                type(error).__name__,
            )
        with self._changed:
            self._sending = None
            # a RUNNING event that waits takes over the tables of the failed one
            if happening.kind != RUNNING or not self._runs_wait():
                self._waiting.insert(0, happening)
            # newer relations replace the failed event's
            self._shapes = {**shapes, **self._shapes}
            if not self._finished:
                self._changed.wait(self._retry_s)


PRODUCER: Final = f"urn:waltap:{VERSION}"
TIMEOUT_S: Final = 5.0
"""Time for one request to the server."""
STREAMS: Final = frozenset({"streaming", "snapshot"})


class LineageObserver:
    """Report the lineage of one run.

    ``to`` is a file to which events are appended, or the address of an OpenLineage server.
    ``namespace`` is the namespace of the job.
    """

    def __init__(self, engine: "ObservedEngine", to: str, namespace: str) -> None:
        """Prepare the transport. Raises: LibraryMissing."""
        with needing("waltap.openlineage.to needs OpenLineage's client", extra="openlineage"):
            from openlineage.client import event_v2
            from openlineage.client.transport.file import FileConfig, FileTransport
            from openlineage.client.transport.http import HttpConfig, HttpTransport
        if to.startswith(("http://", "https://")):
            # no retries here: `LineageSender` tries again
            self._transport: Any = HttpTransport(
                HttpConfig(url=to, timeout=TIMEOUT_S, retry={"total": 0})
            )
        else:
            self._transport = FileTransport(FileConfig(log_file_path=to, append=True))
        self._events = event_v2
        self._engine, self._namespace, self._pipeline = engine, namespace, engine.profile.name
        profile = engine.profile
        naming = profile.topic_naming
        self._capture = CaptureRules(profile.capture, naming.spec.factory(naming.properties))
        self._source = _source(profile.connector.properties)
        self._sinks = [
            (e.spec.name, _destination(e.spec.name, e.properties)) for e in profile.sinks
        ]
        self._known: dict[str, Relation] = {}
        self._begun = self._finished = self._changed = False
        self.delivery = LineageSender(self._send)

    # --- hooks -----------------------------------------------------------------------------------

    @hookimpl
    def on_state(self, state: str) -> None:
        """Report the start and the end of the run."""
        if state in STREAMS and not self._begun:
            self._begun = True
            self._emit("START")
        elif state == "stopped" and self._begun and not self._finished:
            self._finished = True
            self._emit("COMPLETE")

    @hookimpl
    def on_failure(self, error: Exception, retried: bool) -> None:
        """Report a failure that ends the run."""
        if retried or self._finished:
            return
        from openlineage.client.generated.error_message_run import ErrorMessageRunFacet

        if not self._begun:
            # consumers expect a START even if the run failed before it streamed
            self._begun = True
            self._emit("START")
        text = error.problem if isinstance(error, WaltapError) else type(error).__name__
        code = error.code if isinstance(error, WaltapError) else WaltapError.code
        facet = ErrorMessageRunFacet(f"{code} {text}", "Python", producer=PRODUCER)
        self._finished = True
        self._emit("FAIL", {"errorMessage": facet})

    @hookimpl
    def on_schema_change(self, old: Relation | None, new: Relation) -> None:
        """Keep a new relation for the event of the next flush."""
        if self._capture.captures(new.schema, new.table) and self._known.get(new.name) != new:
            self._known[new.name] = new
            self.delivery.shape(new)
            self._changed = True

    @hookimpl
    def on_flush(self, durable: Positions, seconds: float) -> None:
        """Report tables that are new or changed."""
        if self._changed and self._begun:
            self._changed = False
            self._emit(RUNNING)

    # --- events ----------------------------------------------------------------------------------

    def _emit(self, kind: str, facets: Mapping[str, Any] | None = None) -> None:
        self.delivery.put(LineageEvent(kind=kind, facets=facets or {}))

    def _send(self, happening: LineageEvent, shapes: Collection[Relation]) -> None:
        """Build and send an event in the sender's thread."""
        from openlineage.client.generated.job_type_job import JobTypeJobFacet

        events = self._events
        job_type = JobTypeJobFacet("STREAMING", "WALTAP", "JOB", producer=PRODUCER)
        tables = sorted(shapes, key=lambda relation: relation.name)
        self._transport.emit(
            events.RunEvent(
                eventType=events.RunState[happening.kind],
                eventTime=happening.at,
                run=events.Run(self._engine.run_id, dict(happening.facets)),
                job=events.Job(self._namespace, self._pipeline, {"jobType": job_type}),
                producer=PRODUCER,
                inputs=[self._input(relation) for relation in tables],
                outputs=[self._output(r, *sink) for sink in self._sinks for r in tables],
            )
        )

    def _input(self, relation: Relation) -> Any:
        namespace, database = self._source
        name = f"{database}.{relation.name}"
        facets = {"schema": _schema(relation.columns)}
        return self._events.InputDataset(namespace, name, facets=facets)

    def _output(self, relation: Relation, kind: str, destination: str) -> Any:
        from openlineage.client.generated.column_lineage_dataset import (
            ColumnLineageDatasetFacet,
            Fields,
            InputField,
            Transformation,
        )

        namespace, database = self._source
        source = f"{database}.{relation.name}"
        columns = [relation.columns[index] for index in self._capture.columns(relation)]
        fields = {}
        for column in columns:
            hidden = self._capture.meant_to_hide(relation, column)
            change = Transformation(
                "DIRECT", "TRANSFORMATION" if hidden else "IDENTITY", "", masking=hidden
            )
            came = InputField(namespace, source, column.name, transformations=[change])
            fields[column.name] = Fields([came])
        lineage = ColumnLineageDatasetFacet(fields, producer=PRODUCER)
        facets = {"schema": _schema(columns), "columnLineage": lineage}
        topic = self._capture.topic(relation.schema, relation.table)
        # a dataset of Kafka is a topic
        name = topic if kind == "kafka" else relation.name
        return self._events.OutputDataset(destination, name, facets=facets)


def _schema(columns: Iterable[Column]) -> Any:
    from openlineage.client.generated.schema_dataset import (
        SchemaDatasetFacet,
        SchemaDatasetFacetFields,
    )

    fields = [
        SchemaDatasetFacetFields(column.name, shown_type(column), column.comment, ordinal)
        for ordinal, column in enumerate(columns, 1)
    ]
    return SchemaDatasetFacet(fields, producer=PRODUCER)


def _source(properties: object) -> tuple[str, str]:
    """Return the namespace and the database of a source's tables."""
    # OpenLineage's naming rule for PostgreSQL
    host = getattr(properties, "hostname", "") or "localhost"
    port = getattr(properties, "port", 5432)
    return f"postgres://{host}:{port}", str(getattr(properties, "dbname", "") or "database")


def _destination(name: str, properties: object) -> str:
    """Return the namespace of a sink's tables, without secrets."""
    if name == "kafka":
        servers = str(getattr(properties, "servers", "") or "")
        return f"kafka://{servers.partition(',')[0]}"
    destination = str(getattr(properties, "path", "") or "")
    if "://" in destination:
        # scheme, host and path only: user and query can hold a secret
        parts = urlsplit(destination)
        return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
    return f"file:{destination}" if destination else f"waltap:{name}"
