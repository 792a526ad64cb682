"""The sink suite's rig, and how it makes the sink."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import orjson

from waltap.changes.events.event import Record
from waltap.changes.transactions.position import SOLE, Position, Positions, SnapshotProgress
from waltap.ports.sink.sink import Sink, SinkCapabilities, SinkContext
from waltap.ports.specs import SinkSpec
from waltap_testing.installed import identity_as_sent, mapper
from waltap_testing.workload import ExpectedEvent, ScriptedWorkload


@dataclass(frozen=True, slots=True)
class DeliveredChange:
    """One change that a destination of changes holds."""

    table: str
    # As Debezium's: c, u, d, r, t.
    op: str
    # By column name, as the destination returns them. A delete needs only its key, a truncate
    # nothing.
    values: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SinkRig:
    """The sink under test, and access to its destination."""

    spec: SinkSpec
    properties: object
    # Read the destination in its order, without the sink: `Record`s for a sink of records, else
    # `DeliveredChange`s. It must return the data that a consumer would see.
    read_back: "Callable[[], Sequence[Record] | Sequence[DeliveredChange]]"
    _: KW_ONLY
    # False: the destination holds current rows only, and ``read_back`` returns one
    # `DeliveredChange` with op "r" for each row.
    stores_history: bool = True
    # Whether the destination keeps the order of a topic, or only of a key.
    order: Literal["topic", "key"] = "topic"
    # A context manager that makes the destination refuse writes. Destinations that are files need
    # none: the suite fills the disk.
    outage: "Callable[[], AbstractContextManager[object]] | None" = None
    # False: the plugin cannot run in a forked process. Crashes are then imitated: the sink stays
    # unclosed.
    forks: bool = True
    # Column → value, where the table ``kinds`` returns another value than the suite expects.
    kinds: Mapping[str, object] = field(default_factory=dict)
    # Changes the context of the factory.
    context: Callable[[SinkContext], SinkContext] = lambda context: context
    # True: the sink itself calls `SinkContext.may_write`, besides the engine.
    asks: bool = False
    # Make the empty destination refuse single rows of ``items`` (id, serial, name) with a certain
    # name; return that name. None: it refuses no single records.
    unfit: "Callable[[], str] | None" = None
    # Copy the destination, which may be empty or absent; return a function that restores the copy,
    # also beneath an open sink. `waltap_testing.sinks.losses.keeping` makes one for a file or
    # folder. None: the suite cannot test whether the sink notices a loss.
    keep: "Callable[[], Callable[[], object]] | None" = None

    def build(
        self, folder: Path, *, has_offset: bool = False, snapshot: SnapshotProgress | None = None
    ) -> Sink:
        """Return a new sink that is not open.

        ``folder`` holds its state. ``snapshot`` is the offset's progress of an unfinished
        snapshot.
        """
        context = SinkContext(
            pipeline="conformance",
            state_dir=folder,
            describe=lambda relation: relation,
            has_offset=has_offset,
            snapshot=snapshot,
        )
        context = self.context(context)
        sink = self.spec.factory(self.properties, context)
        # Only sinks of changes map types themselves; the format does it for sinks of records.
        if not sink.capabilities.records:
            # The types and identities of the installed plugins, as engines use them.
            types, identity = context.types or mapper(), context.identity or identity_as_sent()
            context = replace(context, types=types, identity=identity)
            sink = self.spec.factory(self.properties, context)
        return sink

    def opened(self, folder: Path, **options: Any) -> Sink:
        """Return an open sink; the arguments are as for `build`."""
        sink = self.build(folder, **options)
        sink.open()
        return sink

    def with_context(self, **changes: Any) -> "SinkRig":
        """Return the rig with other fields of the sink's context."""
        return replace(self, context=lambda given: replace(self.context(given), **changes))


def sole(promised: Position | Positions | None) -> Position | None:
    """Return the position of the only partition.

    `Sink.flush` and `Sink.open` may return a position or positions by partition.
    """
    return Positions.of(promised).get(SOLE)


# Compare a destination with the delivered events.
#
# Events can be lost, invented, doubled or out of order.


def assert_complete(
    rig: SinkRig,
    capabilities: SinkCapabilities,
    workload: ScriptedWorkload,
    *,
    doubled: Position | None = None,
    broken_off: Collection[ExpectedEvent] = (),
    at: str = "",
) -> int:
    """Check that the destination holds ``workload``.

    Return the number of doubled events.

    - ``doubled``: events after this position may be there more than once; None: no event may.
    - ``broken_off``: rows of an interrupted snapshot, which a history may hold as well.
    """
    where = f"{at}: " if at else ""
    found = rig.read_back()
    if not rig.stores_history:
        _assert_rows(found, workload, where)
        return 0
    expected = [e for e in workload.events if capabilities.records or e.op is not None]
    events = [_event(item) for item in found]
    known = set(expected)
    # Rows of an interrupted snapshot are neither required nor wrong.
    events = [event for event in events if event in known or event not in broken_off]
    invented = [event for event in events if event not in known]
    assert not invented, f"{where}never delivered: {invented[:3]}"
    counts = Counter(events)
    missing = [event for event in expected if event not in counts]
    assert not missing, f"{where}{len(missing)} of {len(expected)} lost, first {missing[0]}"
    _assert_order(expected, events, rig.order, where)
    more = [event for event, count in counts.items() if count > 1 and event not in broken_off]
    if doubled is None:
        assert not more, f"{where}{len(more)} events doubled, first {more[0]}"
    else:
        # The engine sends events before the stored position only once.
        repeated = _events_until(workload, doubled)
        wrong = [event for event in more if event in repeated]
        assert not wrong, f"{where}doubled though promised: {wrong[:3]}"
    return len(more)


def _assert_order(
    expected: Sequence[ExpectedEvent], found: Sequence[ExpectedEvent], order: str, where: str
) -> None:
    """Check the order of events per topic or key.

    No event comes before its predecessor, and the last event comes last.
    """
    group: Callable[[ExpectedEvent], object] = (
        (lambda e: (e.table, e.id)) if order == "key" else (lambda e: e.table)
    )
    before: dict[object, list[ExpectedEvent]] = {}
    for event in expected:
        before.setdefault(group(event), []).append(event)
    seen: dict[object, int] = dict.fromkeys(before, 0)
    last: dict[object, ExpectedEvent] = {}
    for event in found:
        key = group(event)
        number = before[key].index(event, 0)
        # A doubled event repeats an earlier part of the order, which is correct after a retry.
        assert number <= seen[key], (
            f"{where}{event} came before {before[key][seen[key]]}, which precedes it"
        )
        seen[key] = max(seen[key], number + 1)
        last[key] = event
    for key, event in last.items():
        assert event == before[key][-1], f"{where}{event} came last, not {before[key][-1]}"


def _assert_rows(found: Iterable[object], workload: ScriptedWorkload, where: str) -> None:
    rows: dict[str, dict[int, int]] = {}
    for item in found:
        assert isinstance(item, DeliveredChange)
        table = rows.setdefault(item.table, {})
        identifier = int(str(item.values["id"]))
        assert identifier not in table, f"{where}{item.table} has id {identifier} twice"
        table[identifier] = int(str(item.values["serial"]))
    expected = {
        name: {identifier: int(row[1] or 0) for identifier, row in table.items()}
        for name, table in workload.rows.items()
        if table
    }
    assert {name: table for name, table in rows.items() if table} == expected, where


def _events_until(workload: ScriptedWorkload, position: Position) -> set[ExpectedEvent]:
    """Return the events of transactions that end at ``position`` or before."""
    events = iter(workload.events)
    repeated: set[ExpectedEvent] = set()
    for part in workload.parts:
        for change in part.changes:
            event = next(events)
            # A delete has two events: its own and the tombstone.
            both = [event, next(events)] if event.op == "d" else [event]
            # A position inside a transaction covers its first ``index`` changes.
            delivered = part.commit_lsn == position.commit_lsn and (
                part.changes.index(change) < position.index
            )
            if part.end_lsn <= position.end_lsn or delivered:
                repeated.update(both)
    return repeated


def _event(item: Record | DeliveredChange) -> ExpectedEvent:
    values = values_of(item)
    operation: str | None
    if isinstance(item, DeliveredChange):
        table, operation, identifier = item.table, item.op, values.get("id")
    else:
        table = item.topic.removeprefix("server.")
        operation = None if item.value is None else str(values["op"])
        identifier = None if item.key is None else orjson.loads(item.key)["id"]
    serial = values.get("serial") if operation in ("c", "u", "r") else None
    return ExpectedEvent(
        table,
        operation,
        None if operation == "t" else int(str(identifier)),
        None if serial is None else int(str(serial)),
    )


def values_of(item: Record | DeliveredChange) -> Mapping[str, object]:
    """Return the values of an item by column name."""
    if isinstance(item, DeliveredChange):
        return item.values
    values: dict[str, object] = orjson.loads(item.value or b"{}")
    return values


def parsed(record: Record) -> object:
    """Return a record for comparison, with its JSON parsed.

    Whitespace in JSON makes no difference.
    """
    parts = (record.key, record.value, *(value for _, value in record.headers))
    names = [name for name, _ in record.headers]
    return record.topic, names, [part if part is None else (orjson.loads(part),) for part in parts]
