"""Write the texts of a value that its row does not change.

`format` explains the parts of a value's text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, repeat

from waltap.changes.decode.tuple_image import UNCHANGED, Tuple
from waltap.changes.events import EventPlan
from waltap.changes.events.event import Record
from waltap.changes.mapping.envelope import EnvelopeForm
from waltap.changes.mapping.json_schema import quote
from waltap.changes.transactions.order import TransactionOrder
from waltap.changes.transactions.transaction import TransactionPart
from waltap.encoders.json.codec import RowCodec


def unsent(plan: EventPlan, row: Tuple | None) -> str:
    """Return the JSON list of unsent fields; null for none.

    The server does not send TOAST values that did not change.
    """
    if row is None:
        return "null"
    names = [quote(column.field) for column in plan.columns if row[column.index] is UNCHANGED]
    return f"[{','.join(names)}]" if names else "null"


class EnvelopeTemplate:
    """Write the texts of one envelope form."""

    def __init__(self, form: EnvelopeForm, end: str) -> None:
        # ``end`` closes the envelope and, with schemas, the payload around it.
        self.fine, self._origins = form.fine_stamps, form.origins
        self._last = form.transaction_last
        self._end, self.names_unsent = end, form.unsent
        self.no_origin = self.origin("null", "null", "null")

    def stamps(self, now: int) -> str:
        """Return the members with the event's creation time.

        ``now`` is in ns since 1970 UTC.
        """
        fine = f',"ts_us":{now // 1_000},"ts_ns":{now}' if self.fine else ""
        return f'"ts_ms":{now // 1_000_000}{fine}'

    def origin(self, xmin: str, origin: str, lsn: str) -> str:
        """Return the end of a source block from JSON texts."""
        origins = f',"origin":{origin},"origin_lsn":{lsn}' if self._origins else ""
        return f',"xmin":{xmin}{origins}}}'

    def after_source(self, block: str, op: str, stamps: str, unsent: str = "null") -> str:
        """Return the text from the source block to the value's end.

        ``unsent`` is the JSON list of unsent fields.
        """
        end = f',"unsent":{unsent}{self._end}' if self.names_unsent else self._end
        # Forms differ in the order of members: ``transaction`` comes last or first.
        if self._last:
            return f',"op":"{op}",{stamps},"transaction":{block}{end}'
        return f',"transaction":{block},"op":"{op}",{stamps}{end}'


class SourceTexts:
    """Hold the source blocks of neighbouring transaction parts, by change.

    ``texts`` are the texts ``a``, ``b``, ``x`` and the end of the source block, one of each per part.
    """

    __slots__ = (
        "_ends", "_made", "_owners", "_parts", "_stamps", "_texts", "_uniform", "_wording",
        "changes", "order", "out",
    )  # fmt: skip

    def __init__(
        self,
        parts: list[TransactionPart],
        texts: tuple[list[str], list[str], list[str], list[str]],
        stamps: str,
        order: TransactionOrder | None,
        out: list[Record],
        wording: EnvelopeTemplate,
    ) -> None:
        self._parts, self._texts, self._wording = parts, texts, wording
        self._stamps, self.order, self.out = stamps, order, out
        # Texts behind the source block, by operation and unsent fields.
        self._ends: dict[str, str] = {}
        self._made: dict[int, PartTemplate] = {}
        origins = texts[3]
        self._uniform = origins.count(origins[0]) == len(origins)
        self._owners: Sequence[int] = ()
        if len(parts) == 1:
            self.changes = parts[0].changes
            return
        lists = [part.changes for part in parts]
        sizes = list(map(len, lists))
        self.changes = list(chain.from_iterable(lists))
        self._owners = range(len(parts))
        if sizes.count(1) != len(sizes):
            self._owners = list(chain.from_iterable(map(repeat, self._owners, sizes)))

    def frames(self, changes: Sequence[int]) -> tuple[Sequence[str], Sequence[str], Sequence[str]]:
        """Return ``a``, ``b`` and ``x`` for the changes of these indexes."""
        a, b, x, _ = self._texts
        count = len(changes)
        if len(a) == 1:
            return a * count, b * count, x * count
        owners = self._owners
        if count == len(a) and isinstance(owners, range):
            return a, b, x
        chosen = _chosen(owners, changes)
        return [a[at] for at in chosen], [b[at] for at in chosen], [x[at] for at in chosen]

    def ends(self, op: str, changes: Sequence[int]) -> list[str]:
        """Return ``c`` for the changes of these indexes, without transaction metadata."""
        text = self._ends.get(op)
        if text is None:
            text = self._ends[op] = self._wording.after_source("null", op, self._stamps)
        origins = self._texts[3]
        if self._uniform:
            return [origins[0] + text] * len(changes)
        return [origins[at] + text for at in _chosen(self._owners, changes)]

    def of(self, at: int) -> "PartTemplate":
        owner = self._owners[at] if self._owners else 0
        made = self._made.get(owner)
        if made is None:
            a, b, x, origins = self._texts
            made = self._made[owner] = PartTemplate(
                self._parts[owner],
                a[owner],
                b[owner],
                x[owner],
                origins[owner],
                self._stamps,
                self.order,
                self.out,
                self._wording,
                self._ends,
            )
        return made


def _chosen(owners: Sequence[int], changes: Sequence[int]) -> Sequence[int]:
    if isinstance(changes, range):
        return owners[changes.start : changes.stop]
    return list(map(owners.__getitem__, changes))


@dataclass(slots=True, eq=False, repr=False)
class PartTemplate:
    """Hold the texts that the events of one part share.

    The module's docstring explains them.
    """

    part: TransactionPart
    a: str
    b: str
    x: str
    origin: str
    stamps: str
    order: TransactionOrder | None
    out: list[Record]
    wording: EnvelopeTemplate
    # As `SourceTexts` has them.
    ends: dict[str, str]

    @property
    def frame(self) -> tuple[str, str, str]:
        """Return the source block's texts around LSN and transaction id."""
        return self.a, self.b, self.x

    def c(self, op: str, n: str, collection: str, unsent: str = "null") -> str:
        """Count an event and return its text after the LSN.

        `EnvelopeTemplate.after_source` explains ``unsent``.
        """
        # Without transaction metadata the text is the same for all events of one operation.
        if self.order is None:
            kind = op if unsent == "null" else op + unsent
            text = self.ends.get(kind)
            if text is None:
                text = self.wording.after_source("null", op, self.stamps, unsent)
                self.ends[kind] = text
            return self.origin + text
        after = self.wording.after_source(self.block(n, collection), op, self.stamps, unsent)
        return f"{self.origin}{after}"

    def block(self, n: str, collection: str) -> str:
        """Count an event at LSN ``n`` and return its transaction block."""
        if self.order is None:
            return "null"
        total, order = self.order.next(collection)
        xid = "null" if self.part.xid is None else self.part.xid
        return f'{{"id":"{xid}:{n}","total_order":{total},"data_collection_order":{order}}}'

    def value(self, codec: RowCodec, before: str, op: str, n: str) -> bytes:
        """Count an event without ``after`` and return its value."""
        text = f'{{"before":{before},"after":null,"source":{{{self.a}{n}{self.b}{codec.table}'
        return codec.prefix + f"{text}{self.x}{n}{self.c(op, n, codec.plan.name)}".encode()
