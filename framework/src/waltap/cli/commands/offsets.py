"""``waltap offsets``: show, move or forget the stored position of a pipeline."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from waltap.base.placeholder import fill
from waltap.base.text import size
from waltap.changes.transactions.order import TransactionCounts
from waltap.changes.transactions.position import SOLE, Position, lsn_text, parse_lsn
from waltap.cli.profile_source import FileArgument, SetOption, Yes, at_rest, connected, resolved
from waltap.cli.terminal import command_group, confirm, echo
from waltap.clock import SystemClock
from waltap.config.profile import Profile
from waltap.errors import (
    OffsetError,
    WaltapError,
    usage_error,
)
from waltap.pipeline.runtime.lock import PipelineLock
from waltap.plugins.host import Host
from waltap.ports.offsets.offset import ConnectOffsets, NothingStored, Offset
from waltap.ports.offsets.owned_objects import OwnedObject
from waltap.ports.offsets.state_folder import SINK_POSITIONS
from waltap.ports.source.connector import Connector, SourceLacks
from waltap.ports.source.roles import TakeoverSource
from waltap.services.debezium_offsets import (
    DebeziumOffsetMissing,
    DebeziumStillReads,
    OffsetMap,
    RecordKey,
    chosen,
    next_start,
    of_offset,
    position_behind,
    storage_at,
)

if TYPE_CHECKING:
    from waltap.pipeline.engine.build import PipelineStages


STORAGE_HELP = (
    "The file of a FileOffsetBackingStore, a Connect worker's topic, or kafka://HOST:PORT/TOPIC."
)

ConnectorName = Annotated[
    str | None,
    typer.Option(
        "--connector",
        metavar="NAME",
        help="The connector's name, if the storage has several or none.",
    ),
]


def import_from(
    file: FileArgument,
    from_debezium: Annotated[
        str, typer.Option("--from-debezium", metavar="STORAGE", help=STORAGE_HELP)
    ],
    connector: ConnectorName = None,
    yes: Yes = False,
    set_: SetOption = None,
) -> None:
    """Continue where Debezium stopped, with its slot and position.

    This needs no new snapshot. Stop the connector first. The server gives system identifier and
    timeline. Nothing is lost; a partly delivered transaction continues after that part, but rows of one
    COPY may repeat.
    """
    profile, host, stages, _ = _stages(file, set_)
    with PipelineLock(stages.profile.state_dir):
        entries = storage_at(from_debezium, profile, host).read()
        key = chosen(
            entries,
            server=profile.capture.topic_prefix,
            connector=connector,
            location=from_debezium,
        )
        there = OffsetMap.parse(entries[key])
        there.refuse_snapshot()
        before = stages.store.load()
        with connected(profile, host) as (source, own):
            offset = _takeover_offset(source, profile, there, own)
        for note in _notes(stages, there):
            echo(f"{profile.name}: {note}", err=True)
        had = "" if before is None else f" instead of {before.sole.position}"
        question = f"{profile.name}: continue from {offset.sole.position}{had}"
        confirm(f"{question}. Continue?", yes=yes)
        stages.store.store(offset)
        echo(f"{profile.name}: stored {offset.sole.position}")


def export_to(
    file: FileArgument,
    to_debezium: Annotated[
        str, typer.Option("--to-debezium", metavar="STORAGE", help=STORAGE_HELP)
    ],
    connector: ConnectorName = None,
    yes: Yes = False,
    set_: SetOption = None,
) -> None:
    """Give the slot back: Debezium continues where this pipeline stopped.

    This needs no new snapshot. The pipeline must be stopped. A partly delivered transaction comes
    again from its begin.
    """
    profile, host, stages, own = _stages(file, set_)
    with PipelineLock(stages.profile.state_dir):
        offset = stages.store.load()
        if offset is None:
            raise NothingStored(f"no offset is stored for {profile.name}")
        offset = _with_sinks_position(stages, offset)
        value = of_offset(offset, now_us=SystemClock.time_ns() // 1000)
        location = storage_at(to_debezium, profile, host, new=True)
        key = _key_there(location, profile, connector, own)
        with connected(profile, host) as (source, _):
            _refuse_reader(source)
            if (lost := source.lost(offset)) is not None:
                raise lost
        confirm(f"{profile.name}: Debezium {next_start(offset)}. Continue?", yes=yes)
        location.write(key, value)
        echo(f"{profile.name}: {to_debezium} has {key.decode()}: Debezium {next_start(offset)}")


def _stages(
    file: str, set_: list[str] | None
) -> "tuple[Profile, Host, PipelineStages, str | None]":
    """Return the profile with its sink, and the connector's name.

    The sink is needed since it may keep the position.
    """
    from waltap.pipeline.engine.build import PipelineStages

    profile, host, raw = resolved(file, set_)
    named = raw.settings.get("name") if raw.debezium else None
    if named is None and raw.written:  # Debezium Server names its connector after its sink
        named = raw.types.get("sink")
    name = None if named is None else str(fill(named.value, raw.folder)[0])
    return profile, host, PipelineStages(profile, host), name


def _takeover_offset(
    source: Connector, profile: Profile, there: OffsetMap, stages: "PipelineStages"
) -> Offset:
    """Return the offset at which this pipeline continues. Raises: WaltapError."""
    _refuse_reader(source)
    if not isinstance(source, TakeoverSource):
        raise SourceLacks("this database takes no positions from other engines")
    offset = source.offset_at(Position(there.end_lsn))
    lost = source.lost(offset)
    if lost is not None:
        raise lost
    position = position_behind(source, there, profile.engine.spill_memory_bytes)
    collections = there.collections if position.index else {}
    counted = (
        TransactionCounts(
            commit_lsn=position.commit_lsn,
            index=position.index,
            total=sum(collections.values()),
            collections=collections,
        )
        if collections
        else msgspec.UNSET
    )
    offset = offset.with_sole(
        position=position, previous_end_lsn=there.previous_end_lsn, counted=counted
    )
    return msgspec.structs.replace(offset, signals=there.signals, sink=stages.destination)


def _refuse_reader(source: Connector) -> None:
    """Raises: DebeziumStillReads while a process reads the slot."""
    slot = source.slot()
    if slot is not None and slot.reader is not None:
        what = f"slot {slot.name} is being read"
        raise DebeziumStillReads(what, slot=slot.name, reader=slot.reader)


def _notes(stages: "PipelineStages", there: OffsetMap) -> "Iterator[str]":
    """Yield the consequences of continuing there."""
    if there.signals:
        yield (
            "an incremental snapshot continues; the table that was being read is read from its beginning, "
            "and its rows come again"
        )
    if stages.sink.capabilities.exactly_once:
        yield (
            "the sink stores a position with its data, too; a start continues from the later one"
        )


def _with_sinks_position(stages: "PipelineStages", offset: Offset) -> Offset:
    """Return the later of the offset and the sink's own position.

    Raises: SinkError.
    """
    from waltap.pipeline.engine.connection import newest

    if not stages.sink.capabilities.exactly_once:
        return offset
    try:
        return newest(offset, stages.sink.open()) or offset
    finally:
        stages.sink.close()


def _key_there(
    location: ConnectOffsets, profile: Profile, connector: str | None, own: str | None
) -> bytes:
    """Return the key that Debezium reads, or a new one.

    Raises: ConfigurationError if the connector's name is not known.
    """
    server, entries = profile.capture.topic_prefix, location.read()
    for name in dict.fromkeys((connector or own, connector)):
        try:
            return chosen(entries, server=server, connector=name, location="there")
        except DebeziumOffsetMissing:
            continue
    name = connector or own
    if name is None:
        raise usage_error(
            "--connector",
            f"is needed, as no stored offset with topic.prefix {server} gives the connector's name",
            allowed="`name` of the connector that will continue",
        )
    return RecordKey(name, server).encoded()


offsets = command_group(
    "Show, move or forget the stored position of a pipeline; take it from Debezium, or give it back."
)
offsets.command("import")(import_from)
offsets.command("export")(export_to)


@offsets.command()
def show(file: FileArgument, set_: SetOption = None) -> None:
    """Print the stored offset as JSON."""
    profile, stages = _at_rest(file, set_)
    offset = stages.store.load()
    if offset is None:
        echo(f"{profile.name}: no offset is stored", err=True)
        raise typer.Exit(1)
    document = {"pipeline": profile.name, "lsn": str(offset.positions)}
    stored = msgspec.to_builtins(offset)
    if list(stored["partitions"]) == [SOLE]:  # the normal case needs no name
        stored = {**stored.pop("partitions")[SOLE], **stored}
    echo(json.dumps({**document, **stored}, indent=2))


@offsets.command("set")
def set_position(
    file: FileArgument,
    lsn: Annotated[
        str, typer.Argument(metavar="LSN", help="The end of a transaction: 16/B374D848.")
    ],
    yes: Yes = False,
    set_: SetOption = None,
) -> None:
    """Move the stored position: forwards loses changes, backwards repeats them.

    First it prints the effect on slot and sink, then stores the position.
    """
    try:
        position = Position(parse_lsn(lsn))
    except ValueError as cause:
        raise usage_error("LSN", "cannot be read", value=lsn, allowed="e.g. 16/B374D848") from cause
    profile, _, stages, _ = _stages(file, set_)
    with PipelineLock(stages.profile.state_dir):
        store = stages.store
        offset = store.load()
        if offset is None:
            raise NothingStored(f"no offset is stored for {profile.name}")
        if len(offset.partitions) > 1:
            names = ", ".join(offset.partitions)
            raise usage_error("LSN", f"is of one slot, and the pipeline reads several: {names}")
        distance = position.end_lsn - offset.sole.position.end_lsn
        effect = (
            f"skips {size(distance)} of WAL: changes in them are never delivered"
            if distance >= 0
            else f"goes back {size(-distance)} of WAL: changes in them are delivered again, as far as "
            "the slot still has them"
        )
        moved = offset.with_sole(position=position, previous_end_lsn=None)
        if distance < 0:  # the sink may have been restored to its present end
            moved = moved.with_sole(sink_position=msgspec.UNSET)
        if distance > 0:
            # It does not continue at the sink's position.
            moved = msgspec.structs.replace(moved, sink="")
        for note in _what_it_comes_to(profile, stages, moved, back=distance < 0):
            echo(f"{profile.name}: {note}", err=True)
        question = (
            f"{profile.name}: from {offset.sole.position} to {lsn_text(position.end_lsn)} {effect}"
        )
        confirm(f"{question}. Continue?", yes=yes)
        if distance < 0:  # a lower offset may be one that a killed run left
            (stages.profile.state_dir / SINK_POSITIONS).unlink(missing_ok=True)
        store.store(moved)
        echo(f"{profile.name}: stored {position}")


@offsets.command()
def clear(file: FileArgument, yes: Yes = False, set_: SetOption = None) -> None:
    """Forget the stored position: the next run starts as if it were the first."""
    profile, stages = _at_rest(file, set_)
    with PipelineLock(stages.profile.state_dir):
        store = stages.store
        try:
            offset = store.load()
        except OffsetError as error:  # what cannot be read can be forgotten all the same
            confirm(f"{profile.name}: {error.problem}; forget it. Continue?", yes=yes)
        else:
            if offset is None:
                echo(f"{profile.name}: no offset is stored")
                return
            confirm(f"{profile.name}: forget the offset {offset.positions}. Continue?", yes=yes)
            _keep_slot(stages, offset)
        store.clear()
        echo(f"{profile.name}: no offset is stored now")


def _what_it_comes_to(
    profile: Profile, stages: "PipelineStages", moved: Offset, *, back: bool
) -> Iterator[str]:
    """Yield known reasons why a start cannot continue at ``moved``."""
    if back and stages.sink.capabilities.exactly_once:
        yield (
            f"the sink {profile.sink.spec.name} keeps the position with its data, and a start continues "
            "from the later one: going back has no effect as long as that data is there"
        )
    try:
        with connected(profile, Host()) as (connector, _):
            lost = connector.lost(moved)
    except WaltapError as error:
        yield f"whether the server still has the changes from there is unknown: {error.problem}"
        return
    if lost is not None:
        yield f"the next start will refuse this position ({lost.code}): {lost.problem}"


def _keep_slot(stages: "PipelineStages", offset: Offset) -> None:
    """Record the slot's owner before the offset, which had it, goes."""
    for each in offset.partitions.values():
        entry = OwnedObject(
            kind="slot",
            name=each.slot,
            system_id=each.system_id,
            database=each.database,
            made=each.slot_created_lsn > 0,
        )
        if stages.owned_objects.find(*entry.key) is None:
            stages.owned_objects.keep(entry)


def _at_rest(file: str, set_: list[str] | None) -> "tuple[Profile, PipelineStages]":
    from waltap.pipeline.engine.build import PipelineStages

    profile, host = at_rest(file, set_)
    return profile, PipelineStages(profile, host)
