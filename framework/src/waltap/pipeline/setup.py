"""Builds the stages of a pipeline from its profile: capture, types, format, sink, offset store."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from waltap.capture.capture import Capture
from waltap.config.profile import Profile
from waltap.config.secrecy import redacted
from waltap.decode.relation import Column, Relation
from waltap.decode.replica_identity import IdentityWarning, ReplicaIdentity
from waltap.decode.tuple_image import Value
from waltap.errors import OffsetError
from waltap.events import EventTransform, Identities
from waltap.format.format import Format, FormatContext
from waltap.host import Host
from waltap.mapping.type_registry import TypeRegistry
from waltap.offsets.belongings import Belongings
from waltap.offsets.offset import Offset, OffsetStore
from waltap.offsets.state_folder import BELONGINGS, RELATIONS, TABLES
from waltap.pipeline.new_tables import NewTables
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


VERSIONS_KEPT = 8
"""Versions of one relation whose description is kept."""


@dataclass(slots=True)
class _Known:
    """What was made of one relation version."""

    described: Relation | None = None
    identity: ReplicaIdentity | None = None


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
        self._connector: Connector | None = None
        self._known: dict[int, dict[Relation, _Known]] = {}
        self._last_seen: dict[str, Relation] = {}
        self._warned: set[IdentityWarning] = set()
        self._left_out: dict[int, tuple[str, ...]] = {}
        self.identities = Identities(
            host.replica_identities.values(),
            lambda relation: host.choose("choose_replica_identity", relation=relation),
        )
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
        self.send_format = SendFormat(self._unreadable)
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
            made=made,
            reconnects=reconnects,
            belongings=self.belongings,
            announced=self.announced,
            forget=self.forget,
            memory=self.memory,
            identity_warnings=self.identity_warnings,
            left_out=self.left_out,
            send_format=self.send_format,
        )
        self._connector = component.spec.factory(component.properties, context)
        return self._connector

    def describe(self, relation: Relation) -> Relation:
        """Complete a relation once per version."""
        known = self._version(relation)
        if known.described is None:
            described = relation
            if relation.primary_key is None:
                assert self._connector is not None
                described = self._connector.describe(relation)
            known.described = described
            self.announced(described)
        return known.described

    def _version(self, relation: Relation) -> _Known:
        versions = self._known.setdefault(relation.oid, {})
        known = versions.get(relation)
        if known is None:
            if len(versions) == VERSIONS_KEPT:
                del versions[next(iter(versions))]
            known = versions[relation] = _Known()
        return known

    def forget(self, oid: int) -> None:
        """Drop what is kept of a relation that is gone."""
        versions = self._known.pop(oid, {})
        self._left_out.pop(oid, None)
        for name in {relation.name for relation in versions}:
            if name in self._last_seen and self._last_seen[name].oid == oid:
                del self._last_seen[name]
        if self.format is not None:
            self.format.forget(oid)

    def renew(self, relation: Relation) -> Relation:
        """Return a described relation with its data types as they are now."""
        assert self._connector is not None
        renewed = self._connector.renew(relation)
        if renewed is not relation:
            self.announced(renewed)
        return renewed

    def complete(self, relation: Relation) -> Relation:
        """Complete a relation of rows that are handed out now, if it is captured."""
        if not self.capture.captures(relation.schema, relation.table):
            return relation
        return self.describe(relation)

    def announced(self, relation: Relation) -> None:
        """Tell observers of a described relation that is new, or has another shape."""
        before = self._last_seen.get(relation.name)
        if before is None or not before.same_shape(relation):
            self._last_seen[relation.name] = relation
            self.host.notify(
                "on_schema_change", pipeline=self.profile.name, old=before, new=relation
            )
            self._warn(relation)

    def _warn(self, relation: Relation) -> None:
        """Log what is to be known of a captured relation, and was not told yet: of its replica identity,
        and of columns that nothing delivers."""
        if not self.capture.captures(relation.schema, relation.table):
            return
        before = self._left_out.get(relation.oid, ())
        names = self.left_out(relation)
        if names and names != before:
            log.warning(
                "columns of %s are left out, nothing maps their types: %s; `waltap doctor FILE` says "
                "what delivers them",
                relation.name, ", ".join(names),
                extra={"pipeline": self.profile.name, "relation": relation.name},
            )  # fmt: skip
        told = set(self._warned)
        for warning in self.identity_warnings(relation):
            if warning not in told:
                log.warning(
                    "replica identity: %s: %s; %s",
                    warning.relation, warning.what, warning.remedy,
                    extra={"pipeline": self.profile.name, "relation": warning.relation},
                )  # fmt: skip

    def left_out(self, relation: Relation) -> tuple[str, ...]:
        """Return the columns of a described relation, with their types, that are captured and have none
        that is mapped; they count as told."""
        names = tuple(
            f"{column.name} ({_type_name(column)})"
            for column in (relation.columns[index] for index in self.capture.columns(relation))
            if self.types.column(column) is None
        )
        if names:
            self._left_out[relation.oid] = names
        else:
            self._left_out.pop(relation.oid, None)
        return names

    def identity_warnings(self, relation: Relation) -> list[IdentityWarning]:
        """Return what is to be known of a described relation's replica identity; it counts as told."""
        found = self.identities.of(relation).warnings(relation)
        self._warned.update(found)
        return found

    def text_of(self, column: Column) -> Callable[[Value], Value] | None:
        """Return what turns values of ``column`` in send format into PostgreSQL's text."""
        mapping = self.types.column(column)
        if mapping is None or mapping.from_binary is None:
            return None
        read = mapping.from_binary
        return lambda value: read(value) if isinstance(value, bytes) else value

    def _unreadable(self, relation: Relation) -> Iterator[str]:
        chosen = {*self.capture.columns(relation), *self.capture.keys(relation)}
        for index in sorted(chosen):
            column = relation.columns[index]
            mapping = self.types.column(column)
            if mapping is not None and mapping.from_binary is None:
                yield f"column {column.name} ({_type_name(column)})"

    def identity(self, relation: Relation) -> ReplicaIdentity:
        """Return the replica identity to read a relation with, once per version."""
        known = self._version(relation)
        if known.identity is None:
            known.identity = self.identities.of(self.describe(relation))
        return known.identity

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
                describe=self.describe,
                identity=self.identity,
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
                describe=self.describe,
                renew=self.renew,
                announced=self.profile.decoder.spec.capabilities.relations,
                identity=self.identity,
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


def _type_name(column: Column) -> str:
    data_type = column.data_type
    if data_type is None:
        return f"type {column.type_oid}"
    return data_type.name if data_type.element is None else f"{data_type.element.name}[]"


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
