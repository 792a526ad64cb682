"""The rig of the sink suite, and how it makes the sink."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Literal

from waltap.changes.events.record import Record
from waltap.changes.transactions.position import SOLE, Position, Positions
from waltap.changes.transactions.snapshot_progress import SnapshotProgress
from waltap.ports.sink.sink import Sink, SinkContext
from waltap.ports.specs import SinkSpec
from waltap_testing.installed import identity_kept, mapper

__all__ = ["DeliveredChange", "SinkRig", "sole"]


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
    keeps_history: bool = True
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
    # also beneath an open sink. `waltap_testing.sink_losses.keeping` makes one for a file or
    # folder. None: the suite cannot test whether the sink notices a loss.
    keep: "Callable[[], Callable[[], object]] | None" = None

    def build(
        self, folder: Path, *, resumes: bool = False, snapshot: SnapshotProgress | None = None
    ) -> Sink:
        """Return a new sink that is not open.

        ``folder`` holds its state. ``snapshot`` is the offset's progress of an unfinished
        snapshot.
        """
        context = SinkContext(
            pipeline="conformance",
            state_dir=folder,
            describe=lambda relation: relation,
            resumes=resumes,
            snapshot=snapshot,
        )
        context = self.context(context)
        sink = self.spec.factory(self.properties, context)
        # Only sinks of changes map types themselves; the format does it for sinks of records.
        if not sink.capabilities.records:
            sink = self.spec.factory(self.properties, _with_installed_types(context))
        return sink


def _with_installed_types(context: SinkContext) -> SinkContext:
    """Add the types and identities of the installed plugins, as engines do."""
    return replace(
        context,
        types=context.types or mapper(),
        identity=context.identity or identity_kept(),
    )


def sole(promised: Position | Positions | None) -> Position | None:
    """Return the position of the only partition.

    `Sink.flush` and `Sink.open` may return a position or positions by partition.
    """
    return Positions.of(promised).get(SOLE)
