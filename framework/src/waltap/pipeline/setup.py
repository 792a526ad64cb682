"""Builds the stages of a pipeline from its profile: capture, types, format, sink, offset store."""

import logging
from collections.abc import Callable
from pathlib import Path

from waltap.capture.capture import Capture
from waltap.config.profile import Profile
from waltap.config.secrecy import redacted
from waltap.errors import OffsetError
from waltap.events import EventTransform
from waltap.format.format import Format, FormatContext
from waltap.host import Host
from waltap.mapping.type_registry import TypeRegistry
from waltap.offsets.belongings import Belongings
from waltap.offsets.offset import Offset, OffsetStore
from waltap.offsets.state_folder import BELONGINGS, RELATIONS, TABLES
from waltap.pipeline.new_tables import NewTables
from waltap.pipeline.relations import Relations
from waltap.pipeline.tenure import Tenure
from waltap.sink.sink import Sink, SinkContext
from waltap.source.connector import Connector, ConnectorContext, DecoderChoice, MadeByRun
from waltap.source.relation_memory import RelationMemory
from waltap.source.send_format import SendFormat
from waltap.specs import EventTransformSpec
from waltap.transactions.order import TransactionOrder
from waltap.transactions.transaction import Batch

log = logging.getLogger(__name__)

__all__ = ["Stages", "build"]


class Stages:
    """What a run is made of. The connector changes with every reconnect; the rest stays."""

    def __init__(
        self,
        profile: Profile,
        host: Host,
        run_id: str,
        stopping: Callable[[], bool],
        tenure: Tenure | None,
    ) -> None:
        self.profile, self.host, self._stopping = profile, host, stopping
        self._tenure = tenure if tenure is not None and tenure.leased else None
        naming = profile.topic_naming
        self.capture = Capture(profile.capture, naming.spec.factory(naming.properties))
        self.types = TypeRegistry(host.types, self.capture.types)
        self.relations = Relations(profile.name, host, self.capture, self.types, self._forget)
        self.order = TransactionOrder()
        self.memory = RelationMemory(self.state_dir / RELATIONS)
        self.store: OffsetStore = _StoreWithMemory(self._store(), self.memory)
        self.belongings = Belongings(self.state_dir / BELONGINGS)
        self.new_tables = NewTables(
            self.state_dir / TABLES,
            _new_tables_policy(profile),
            self.capture.captures,
            lambda table, event: host.notify(
                "on_new_table", pipeline=profile.name, table=table, event=event
            ),
        )
        self.send_format = SendFormat(self.relations.unreadable)
        self.sink = self._sink()
        self.transforms: list[Callable[[Batch], Batch]] = []
        self.event_transforms: list[tuple[str, EventTransform]] = []
        for component in profile.transforms:
            spec = component.spec
            if isinstance(spec, EventTransformSpec):
                self.event_transforms.append((spec.name, spec.factory(component.properties)))
            else:
                self.transforms.append(spec.factory(component.properties))
        self.format = self._format(run_id) if self.sink.capabilities.records else None

    def renew_sink(self) -> Sink:
        """Close the sink, which failed, and return a new one in its place, not opened."""
        self.sink.close()
        self.sink = self._sink()
        return self.sink

    def open_connector(self, made: MadeByRun, *, reconnects: bool = False) -> Connector:
        """Make the profile's connector, and describe relations by it from now on. Raises: WaltapError."""
        profile = self.profile
        component, snapshotter = profile.connector, profile.snapshotter
        context = ConnectorContext(
            captures=self.capture.captures,
            capture=profile.capture,
            decoder=_decoder(profile),
            snapshotter=snapshotter.spec.factory(snapshotter.properties),
            stopping=self._stopping,
            debezium=profile.debezium,
            status_interval_ms=profile.engine.status_interval_ms,
            retries=bool(profile.engine.max_retries),
            leased=self._tenure is not None,
            delivers_prepared=profile.engine.two_phase_policy == "prepare",
            resumes_snapshot=self.sink.capabilities.resumes_snapshots,
            made=made,
            reconnects=reconnects,
            belongings=self.belongings,
            announced=self.relations.announced,
            forget=self.relations.forget,
            memory=self.memory,
            identity_warnings=self.relations.identity_warnings,
            left_out=self.relations.left_out,
            send_format=self.send_format,
        )
        connector: Connector = component.spec.factory(component.properties, context)
        self.relations.connector = connector
        return connector

    def _forget(self, oid: int) -> None:
        if self.format is not None:
            self.format.forget(oid)

    def _store(self) -> OffsetStore:
        component = self.profile.offset_store
        return component.spec.factory(component.properties, str(self.state_dir))

    @property
    def destination(self) -> str:
        """Return the sink as ``--sink`` takes it; paths below the profile's folder start there, so that
        a folder may be moved with all that is in it."""
        spec, properties = self.profile.sink.spec, self.profile.sink.properties
        given = {} if properties is None else properties.model_dump(by_alias=True)
        place = str(given.get(spec.shorthand, ""))
        place = redacted(place.removeprefix(f"{self.profile.folder}/"))
        return f"{spec.name}:{place}" if place else spec.name

    @property
    def state_dir(self) -> Path:
        """Return the pipeline's own folder."""
        return self.profile.engine.state_dir / self.profile.name

    def _sink(self) -> Sink:
        component = self.profile.sink
        return component.spec.factory(
            component.properties,
            SinkContext(
                pipeline=self.profile.name,
                state_dir=self.state_dir,
                types=self.types,
                describe=self.relations.describe,
                identity=self.relations.identity,
                capture=self.capture,
                resumes=self._resumes(),
                stopping=self._stopping,
                takes_over=self._tenure is not None,
                may_write=(lambda: None) if self._tenure is None else self._tenure.check,
            ),
        )

    def _resumes(self) -> bool:
        """Tell whether an offset is stored; what cannot be read is told by those who need it."""
        try:
            return self.store.load() is not None
        except OffsetError:
            return True

    def _format(self, run_id: str) -> Format:
        component = self.profile.format
        source = self.profile.connector.properties
        return component.spec.factory(
            component.properties,
            FormatContext(
                describe=self.relations.describe,
                renew=self.relations.renew,
                announced=self.profile.decoder.spec.capabilities.relations,
                identity=self.relations.identity,
                capture=self.capture,
                database=getattr(source, "dbname", ""),
                run_id=run_id,
                mapper=lambda options: TypeRegistry(self.host.types, options),
                warn=log.warning,
                choose_topic=lambda relation: self.host.choose("choose_topic", relation=relation),
                transforms=self.event_transforms,
                stopping=self._stopping,
                order=self.order,
            ),
        )


class _StoreWithMemory(OffsetStore):
    """An offset store, and the relations that were described up to the offset."""

    def __init__(self, store: OffsetStore, memory: RelationMemory) -> None:
        self._store, self._memory = store, memory

    def load(self) -> Offset | None:
        return self._store.load()

    def store(self, offset: Offset) -> None:
        self._store.store(offset)
        self._memory.save()

    def clear(self) -> None:
        self._store.clear()
        self._memory.start_anew(())


def _decoder(profile: Profile) -> DecoderChoice:
    spec, properties = profile.decoder.spec, profile.decoder.properties
    given = {} if properties is None else properties.model_dump(by_alias=True)
    return DecoderChoice(
        name=spec.name,
        output_plugin=spec.output_plugin,
        capabilities=spec.capabilities,
        factory=spec.factory,
        options={**given, **spec.forced_options},
        two_phase=bool(getattr(properties, "two_phase", False)),
    )


def _new_tables_policy(profile: Profile) -> str:
    engine = profile.engine
    given = "new_tables" in engine.model_fields_set
    return "warn" if profile.debezium and not given else engine.new_tables


def build(
    profile: Profile,
    host: Host,
    *,
    run_id: str,
    stopping: Callable[[], bool] = lambda: False,
    tenure: Tenure | None = None,
) -> Stages:
    """Return the stages of a pipeline; nothing is connected yet. ``tenure`` is that of a run.
    Raises: WaltapError."""
    return Stages(profile, host, run_id, stopping, tenure)
