"""Build the stages of a pipeline from its profile.

They are capture rules, types, format, sinks, offset store and the rest.
"""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from waltap.base.plugin_errors import HookRaised, RoleIncomplete, part_of, require_methods, usable
from waltap.base.redaction import redacted
from waltap.changes.capture.capture import CaptureRules
from waltap.changes.decode.relation import Column, Relation
from waltap.changes.mapping.conversion import ColumnConversion
from waltap.changes.mapping.type_registry import TypeRegistry
from waltap.changes.transactions.order import TransactionOrder
from waltap.changes.transactions.position import Positions, SnapshotProgress
from waltap.clock import Clock, SystemClock
from waltap.config.pipeline_properties import SinkBranchProperties
from waltap.config.profile import Component, Profile, SinkBranchProfile, TransformUse
from waltap.encoders.format.format import Format, FormatContext
from waltap.encoders.format.record_stage import RecordStep
from waltap.encoders.format.record_transform import RecordTransformContext
from waltap.errors import OffsetError, SinkError, WaltapError
from waltap.pipeline.delivery.fan_out import FanOut
from waltap.pipeline.delivery.sink_branch import PositionedBranch, SinkBranch, TransformChain
from waltap.pipeline.runtime.leadership import Leadership
from waltap.pipeline.stages.conversions import ColumnConversions
from waltap.pipeline.stages.new_tables import NewTables
from waltap.pipeline.stages.relations import DescribedRelations
from waltap.plugins.host import Host
from waltap.ports.offsets.offset import BranchPositions, Offset, OffsetStore
from waltap.ports.offsets.owned_objects import OwnedObjects
from waltap.ports.offsets.state_folder import (
    DEAD_LETTERS,
    OWNED_OBJECTS,
    RELATIONS,
    SINK_FOLDERS,
    SINK_POSITIONS,
    TABLES,
)
from waltap.ports.sink import roles as sink_roles
from waltap.ports.sink.sink import Sink, SinkCapabilities, SinkContext
from waltap.ports.snapshot.snapshotter import Snapshotter
from waltap.ports.source import roles as source_roles
from waltap.ports.source.connector import Connector, ConnectorContext, DecoderChoice, MadeByRun
from waltap.ports.source.password import Password, PasswordUnavailable
from waltap.ports.source.relation_memory import RelationMemory
from waltap.ports.specs import (
    EventTransformSpec,
    FormatSpec,
    RecordTransformSpec,
    SinkSpec,
    SnapshotterSpec,
    SourceTransformSpec,
)
from waltap.services.dead_letters.dead_letter import FailureHandling, FailurePolicy
from waltap.services.dead_letters.poison_events import PoisonEventHandler
from waltap.services.dead_letters.queue import DeadLetterCopies, DeadLetterQueue
from waltap.services.dead_letters.store import DeadLetterStore

log = logging.getLogger(__name__)

B = TypeVar("B", bound=SinkBranch)


def chosen_password(host: Host) -> Password | None:
    """Return the plugins' ``choose_password`` as a function, None without one."""
    if not host.implements("choose_password"):
        return None

    def password(address: str, port: int, user: str, database: str) -> str | None:
        try:
            found: str | None = host.choose(
                "choose_password", host=address, port=port, user=user, database=database
            )
        except HookRaised as error:
            if isinstance(error.__cause__, WaltapError):
                raise error.__cause__ from error
            what = f"no password for {user} at {address}:{port}: {error.problem}"
            raise PasswordUnavailable(what, **error.fields) from error
        return found

    return password


class PipelineStages:
    """Hold the stages of a run.

    The connector changes with every reconnect; the other stages stay. Without a run they serve commands.
    """

    def __init__(
        self,
        profile: Profile,
        host: Host,
        *,
        run_id: str = "",
        stopping: Callable[[], bool] = lambda: False,
        time_left: Callable[[], float] = lambda: math.inf,
        leadership: Leadership | None = None,
        clock: Clock | None = None,
        waits_for: Callable[[str], AbstractContextManager[None]] = lambda _name: nullcontext(),
        repairs: bool = False,
    ) -> None:
        """Build the stages, without a connection.

        With ``repairs`` a destination may have lost data. Raises: WaltapError.
        """
        self.profile, self.host, self._run_id = profile, host, run_id
        folder = profile.state_dir
        self._stopping, self._time_left = stopping, time_left
        self._clock = clock = clock or SystemClock()
        self._repairs, self.waits_for = repairs, waits_for
        self._leadership = leadership if leadership is not None and leadership.leased else None
        self._may_write = (lambda: None) if leadership is None else leadership.check
        naming = profile.topic_naming
        self.capture = CaptureRules(
            profile.capture, part_of(naming.spec.factory, 2, naming.properties)
        )
        self.types = TypeRegistry(host.types, self.capture.types, self._conversion)
        self.memory = RelationMemory(folder / RELATIONS)
        self.relations = DescribedRelations(
            profile.name,
            host,
            self.capture,
            self.types,
            self._forget,
            self.memory,
            lambda: self.open_connector(MadeByRun()),
            debezium=profile.debezium,
        )
        self.conversions = ColumnConversions(
            [
                (use.label, part_of(use.spec.factory, 2, use.properties))
                for use in profile.converters
            ],
            self.capture,
            self.relations.describe,
        )
        chosen = profile.offset_store
        store = part_of(chosen.spec.factory, OffsetStore, chosen.properties, str(folder))
        self.store: OffsetStore = _StoreWithMemory(store, self.memory)
        self.owned_objects = OwnedObjects(folder / OWNED_OBJECTS)
        given = "new_tables" in profile.engine.model_fields_set
        self.new_tables = NewTables(
            folder / TABLES,
            "warn" if profile.debezium and not given else profile.engine.new_tables,
            self.capture.captures,
            lambda table, event: host.notify(
                "on_new_table", pipeline=profile.name, table=table, event=event
            ),
        )
        self.dead_letters = DeadLetterQueue(
            DeadLetterStore(folder / DEAD_LETTERS),
            clock,
            describe=self.relations.describe,
            form=self._form_of_dead_letters,
            copy=self._copy_of_dead_letters(),
        )
        self._letters_form: Format | None = None
        only = SinkBranchProfile(
            name="",
            sink=profile.sink,
            format=profile.format,
            transforms=(),
            properties=SinkBranchProperties(),
        )
        self.branch: SinkBranch | FanOut = (
            self._fan_out() if profile.branches else self._branch(SinkBranch, only)
        )
        self.branch.renew()

    @property
    def sink(self) -> Sink:
        return self.branch.sink

    @property
    def branches(self) -> Sequence[SinkBranch]:
        return self.branch.branches if isinstance(self.branch, FanOut) else [self.branch]

    def close(self) -> None:
        """Close the connections of stages outside of a run."""
        try:
            self.dead_letters.close()
        finally:
            if self.relations.connector is not None:
                self.relations.connector.close()

    def renew_sink(self) -> None:
        try:
            self.sink.close()
        except SinkError as error:  # the new one has another try
            log.warning("the sink that failed: %s", error)
        self.branch.renew()

    def open_connector(
        self,
        made: MadeByRun,
        *,
        reconnects: bool = False,
        repairs: bool = False,
        confirmable: Callable[[int], int] = lambda lsn: lsn,
    ) -> Connector:
        """Make the profile's connector, and describe relations by it.

        Raises: WaltapError.
        """
        profile = self.profile
        component, snapshotter = profile.connector, profile.snapshotter
        context = ConnectorContext(
            captures=self.capture.captures,
            capture=profile.capture,
            decoder=_decoder(profile),
            snapshotter=part_of(snapshotter.spec.factory, Snapshotter, snapshotter.properties),
            snapshot_query=_mode(profile.snapshot_query),
            snapshot_lock=_mode(profile.snapshot_lock),
            stopping=self._stopping,
            debezium=profile.debezium,
            status_interval_ms=profile.engine.status_interval_ms,
            limits_wal=profile.engine.wal_budget is not None,
            retries=bool(profile.engine.max_retries),
            leased=self._leadership is not None,
            delivers_prepared=profile.engine.two_phase_policy == "prepare",
            resumes_snapshot=self.sink.capabilities.resumes_snapshots,
            restarts_tables=self.sink.capabilities.restarts_tables,
            typed_columns=self.sink.capabilities.typed_columns,
            follows_numbers=self.sink.capabilities.follows_numbers,
            made=made,
            reconnects=reconnects,
            repairs=repairs,
            owned_objects=self.owned_objects,
            announced=self.relations.announced,
            returned=self.new_tables.returned,
            forget=self.relations.forget,
            memory=self.memory,
            identity_warnings=self.relations.identity_warnings,
            left_out=self.relations.left_out,
            mask_check=self.relations.mask_check,
            password=chosen_password(self.host),
            confirmable=confirmable,
            connector_for=self._connector_for,
        )
        connector: Connector = part_of(
            component.spec.factory, Connector, component.properties, context
        )
        require_whole_roles(connector, source_roles)
        self.relations.ask(connector)
        return connector

    @property
    def formats(self) -> list[Format]:
        """Return the formats of all branches; sinks of changes have none."""
        every = (branch.format for branch in self.branches)
        return [each for each in every if each is not None]

    def _connector_for(self, version: str) -> str | None:
        chosen = self.profile.connector.spec.name
        for spec in self.host.connectors.values():
            if spec.recognizes is not None and spec.name != chosen and spec.recognizes(version):
                return spec.name
        return None

    def _forget(self, oid: int) -> None:
        for branch in self.branches:
            branch.forget(oid)

    @property
    def destination(self) -> str:
        """Return the sink in the form of ``--sink``.

        Paths below the profile's folder are relative to it, so that the folder may be moved.
        """
        branches = self.profile.branches
        if not branches:
            return self._sink_text(self.profile.sink)
        return ", ".join(f"{branch.name}={self._sink_text(branch.sink)}" for branch in branches)

    def _sink_text(self, sink: Component[SinkSpec]) -> str:
        spec, properties = sink.spec, sink.properties
        given = {} if properties is None else properties.model_dump(by_alias=True)
        location = str(given.get(spec.shorthand, ""))
        location = redacted(location.removeprefix(f"{self.profile.folder}/"))
        return f"{spec.name}:{location}" if location else spec.name

    def _fan_out(self) -> FanOut:
        profile = self.profile
        return FanOut(
            [self._branch(PositionedBranch, each) for each in profile.branches],
            BranchPositions(self.profile.state_dir / SINK_POSITIONS),
            load=self._stored_positions,
            clock=self._clock,
            failed=lambda error: self.host.notify(
                "on_failure", pipeline=profile.name, error=error, retried=True
            ),
            repairs=self._repairs,
        )

    def _stored_positions(self) -> Positions | None:
        offset = self.store.load()
        return None if offset is None else offset.positions

    def _branch(self, of: type[B], branch: SinkBranchProfile) -> B:
        profile, folder = self.profile, self.profile.state_dir
        tolerance = branch.properties.errors_tolerance
        policy = FailurePolicy.of(profile.engine, profile.capture, tolerance)
        # One of several sinks may be away for a while, or another's key identify other rows. Rows that
        # were delivered at PREPARE may be rolled back.
        at_commit = profile.engine.two_phase_policy == "commit"
        plain = not self.conversions.converters and not policy.tolerant
        keep_all = all(use.spec.preserves_changes for use in profile.transforms)
        gets_every_change = (
            at_commit and plain and keep_all and not profile.capture.message_key_columns
        )
        if branch.name:
            folder, gets_every_change = folder / SINK_FOLDERS / branch.name, False
        chain = self._chain((*profile.transforms, *branch.transforms))
        order = TransactionOrder()
        return of(
            name=branch.name,
            component=branch.sink,
            format_component=branch.format,
            properties=branch.properties,
            make=lambda: self._made_sink(
                branch.sink, folder, policy, gets_every_change=gets_every_change
            ),
            make_format=lambda: self._format(branch.format, chain, order),
            chain=chain,
            undeliverable=PoisonEventHandler(policy, branch.name, order, self.dead_letters),
            order=order,
            clock=self._clock,
        )

    def _made_sink(
        self,
        component: Component[SinkSpec],
        folder: Path,
        policy: FailurePolicy,
        *,
        gets_every_change: bool = False,
    ) -> Sink:
        has_offset, snapshot = self._stored()
        made: Sink = part_of(
            component.spec.factory,
            Sink,
            component.properties,
            SinkContext(
                pipeline=self.profile.name,
                state_dir=folder,
                types=self.types,
                describe=self.relations.describe,
                renew=self.relations.renew,
                identity=self.relations.identity,
                capture=self.capture,
                has_offset=has_offset,
                snapshot=snapshot,
                stopping=self._stopping,
                time_left=self._time_left,
                takes_over=self._leadership is not None,
                may_write=self._may_write,
                gets_every_change=gets_every_change,
                repairs=self._repairs,
                tolerant=policy.records is not FailureHandling.FAIL,
            ),
        )
        usable(made.capabilities, SinkCapabilities, made, "capabilities")
        require_whole_roles(made, sink_roles)
        return made

    def _chain(self, uses: Iterable[TransformUse]) -> TransformChain:
        chain = TransformChain()
        for use in uses:
            spec = use.spec
            if isinstance(spec, RecordTransformSpec):
                chain.records.append(self._record_step(spec, use))
            elif isinstance(spec, SourceTransformSpec):
                context = self.relations.source_context(use.label)
                chain.batches.append(part_of(spec.factory, 1, use.properties, context))
            elif isinstance(spec, EventTransformSpec):
                chain.events.append((spec.name, part_of(spec.factory, 1, use.properties)))
            else:
                chain.batches.append(part_of(spec.factory, 1, use.properties))
        if self.conversions.converters:
            chain.batches.append(self.conversions)
        return chain

    def _conversion(self, relation: Relation, column: Column) -> ColumnConversion | None:
        return self.conversions.of(relation, column)

    def _record_step(self, spec: RecordTransformSpec, use: TransformUse) -> RecordStep:
        context = RecordTransformContext(
            label=use.label,
            capture=self.capture,
            warn=log.warning,
            stopping=self._stopping,
            rows_now=self.relations.source_context(use.label).rows_now,
        )
        predicate = use.predicate
        return RecordStep(
            label=use.label,
            transform=part_of(spec.factory, 1, use.properties, context),
            predicate=None
            if predicate is None
            else part_of(predicate.spec.factory, 1, predicate.properties),
            negate=use.negate,
        )

    def _stored(self) -> tuple[bool, SnapshotProgress | None]:
        """Return whether an offset is stored, and its snapshot."""
        try:
            offset = self.store.load()
        except OffsetError:
            return True, None
        return offset is not None, None if offset is None else offset.snapshot

    def _format(
        self, component: Component[FormatSpec], chain: TransformChain, order: TransactionOrder
    ) -> Format:
        source = self.profile.connector.properties
        form = self.profile.form
        made: Format = part_of(
            component.spec.factory,
            Format,
            component.properties,
            FormatContext(
                describe=self.relations.describe,
                renew=self.relations.renew,
                announced=self.profile.decoder.spec.capabilities.relation_messages,
                stand_in_keys=self.profile.debezium,
                identity=self.relations.identity,
                capture=self.capture,
                database=getattr(source, "dbname", ""),
                run_id=self._run_id,
                mapper=lambda options: TypeRegistry(self.host.types, options, self._conversion),
                warn=log.warning,
                choose_topic=lambda relation: self.host.choose("choose_topic", relation=relation),
                cell=form.cell,
                envelope=form.envelope,
                transforms=chain.events,
                record_steps=chain.records,
                stopping=self._stopping,
                waits_for=self.waits_for,
                order=order,
            ),
        )
        return made

    def _copy_of_dead_letters(self) -> DeadLetterCopies | None:
        component = self.profile.dead_letters
        if component is None:
            return None
        engine, capture = self.profile.engine, self.profile.capture
        topic = engine.dead_letter_topic or f"{capture.topic_prefix}.dead-letters"
        folder = self.profile.state_dir / DEAD_LETTERS / "sink"
        return DeadLetterCopies(
            lambda: self._made_sink(component, folder, FailurePolicy(records=FailureHandling.WARN)),
            topic,
        )

    def _form_of_dead_letters(self) -> Format | None:
        """Return the format for reading dead letters: JSON, before all transforms."""
        spec = self.host.formats.get("json")
        if self._letters_form is None and spec is not None and spec.properties is not None:
            plain = {
                f"{record_part}.converter.schemas.enable": False for record_part in ("key", "value")
            }
            component = Component(spec, spec.properties.model_validate(plain))
            self._letters_form = self._format(component, TransformChain(), TransactionOrder())
        return self._letters_form


class _StoreWithMemory(OffsetStore):
    """Store offsets, and the relations that were described up to them."""

    def __init__(self, store: OffsetStore, memory: RelationMemory) -> None:
        self._store, self._memory = store, memory

    def load(self) -> Offset | None:
        return usable(self._store.load(), (Offset, type(None)), self._store, "load")

    def store(self, offset: Offset) -> None:
        self._store.store(offset)
        self._memory.save()

    def clear(self) -> None:
        self._store.clear()
        self._memory.start_over(())


def require_whole_roles(part: object, roles: ModuleType) -> None:
    """Refuse a ``part`` that implements a role in part.

    Protocols are checked by their members, so that a misspelt method would silently cost the whole
    role: a source would seem to stream every table. Raises: RoleIncomplete.
    """
    for role in vars(roles).values():
        if not getattr(role, "_is_protocol", False) or role.__module__ != roles.__name__:
            continue
        members = [n for n in (*vars(role).get("__annotations__", ()), *vars(role)) if n[0] != "_"]
        missing = [name for name in members if not hasattr(part, name)]
        if missing and len(missing) < len(members):
            found = ", ".join(name for name in members if name not in missing)
            raise RoleIncomplete(
                f"{type(part).__qualname__} has {found} of a {role.__name__}, and no "
                f"{', '.join(missing)}",
                missing=", ".join(missing),
            )
        if not missing:
            require_methods(part, role)


def _mode(component: Component[SnapshotterSpec] | None) -> Snapshotter | None:
    return (
        None
        if component is None
        else part_of(component.spec.factory, Snapshotter, component.properties)
    )


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
