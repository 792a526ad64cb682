"""What the sink suite needs of an author, and how it makes the sink."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Literal

from waltap.format.record import Record
from waltap.sink.sink import Sink, SinkContext
from waltap.snapshot.progress import SnapshotProgress
from waltap.source.position import SOLE, Position, Positions
from waltap.specs import SinkSpec
from waltap_testing.installed import identity_kept, mapper

__all__ = ["DeliveredChange", "SinkRig", "sole"]


@dataclass(frozen=True, slots=True)
class DeliveredChange:
    """One change found in a destination of changes: ``op`` as Debezium's (c u d r t), ``values`` by
    column name as the destination gives them back (a delete needs its key only, a truncate none)."""

    table: str
    op: str
    values: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SinkRig:
    """What the suite needs of an author.

    ``read_back`` reads the destination by other means than the sink, in its order, what a consumer
    would see: `Record`s for a sink of records, `DeliveredChange` for one of changes. ``keeps_history``:
    False for a destination that holds current rows only; then ``read_back`` gives one `DeliveredChange`
    with op "r" per row. ``order``: how far the destination keeps order: "topic" or "key".
    ``outage``, a context manager, makes the destination refuse what is written; for destinations
    that are files the suite makes its own. ``forks``: False where the plugin cannot run in a forked
    process; then crashes are imitated by leaving the sink unclosed. ``kinds`` overrides what the
    columns of the table ``kinds`` give back. ``context`` may change the context of the factory.
    ``unfit`` makes the destination, which is empty yet, refuse rows of the table ``items`` (id, serial,
    name) with a certain name, each by itself, and returns that name; None: it refuses no single records.
    ``keep`` takes a copy of the destination as it is, empty or absent too, and returns what puts that back
    in its place, also beneath an open sink; `waltap_testing.sink_losses.keeping` makes one for a file or
    folder. None: nothing can be put back, and whether the sink notices a loss is not tested.
    ``asks``: the sink asks `SinkContext.may_write` by itself, beside the engine.
    """

    spec: SinkSpec
    properties: object
    read_back: "Callable[[], Sequence[Record] | Sequence[DeliveredChange]]"
    _: KW_ONLY
    keeps_history: bool = True
    order: Literal["topic", "key"] = "topic"
    outage: "Callable[[], AbstractContextManager[object]] | None" = None
    forks: bool = True
    kinds: Mapping[str, object] = field(default_factory=dict)
    context: Callable[[SinkContext], SinkContext] = lambda context: context
    asks: bool = False
    unfit: "Callable[[], str] | None" = None
    keep: "Callable[[], Callable[[], object]] | None" = None

    def build(
        self, folder: Path, *, resumes: bool = False, snapshot: SnapshotProgress | None = None
    ) -> Sink:
        """Return a new sink, not opened; ``folder`` holds its state, ``snapshot`` is what the offset says
        of a snapshot that has not ended."""
        context = SinkContext(
            pipeline="conformance",
            state_dir=folder,
            describe=lambda relation: relation,
            resumes=resumes,
            snapshot=snapshot,
        )
        context = self.context(context)
        sink = self.spec.factory(self.properties, context)
        if not sink.capabilities.records:
            sink = self.spec.factory(self.properties, _with_installed_types(context))
        return sink


def _with_installed_types(context: SinkContext) -> SinkContext:
    """Give a sink of changes the types and identities of the installed plugins, as engines do."""
    return replace(
        context,
        types=context.types or mapper(),
        identity=context.identity or identity_kept(),
    )


def sole(promised: Position | Positions | None) -> Position | None:
    """Return the position of the only partition, as `Sink.flush` and `Sink.open` may give it."""
    return Positions.of(promised).get(SOLE)
