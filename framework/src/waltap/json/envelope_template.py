"""What stands around rows in the text of an event, by the form of the envelope."""

from waltap.decode.tuple_image import UNCHANGED, Tuple
from waltap.events import EventPlan
from waltap.json.schema import quote
from waltap.mapping.envelope import EnvelopeForm

__all__ = ["EnvelopeTemplate", "unsent"]


def unsent(plan: EventPlan, row: Tuple | None) -> str:
    """Return the JSON of the names of fields of ``row`` that the server did not send; null for none."""
    if row is None:
        return "null"
    names = [quote(column.field) for column in plan.columns if row[column.index] is UNCHANGED]
    return f"[{','.join(names)}]" if names else "null"


class EnvelopeTemplate:
    """The texts of one form. ``end`` closes a value: the envelope, and the schema's wrapping."""

    def __init__(self, form: EnvelopeForm, end: str) -> None:
        self._fine, self._last, self._origins = (
            form.fine_stamps,
            form.transaction_last,
            form.origins,
        )
        self._end, self.names_unsent = end, form.unsent
        self.no_origin = self.origin("null", "null", "null")

    def stamps(self, now: int) -> str:
        """Return when events are made: ``now`` in ns since 1970 UTC."""
        fine = f',"ts_us":{now // 1_000},"ts_ns":{now}' if self._fine else ""
        return f'"ts_ms":{now // 1_000_000}{fine}'

    def committed(self, ts: int) -> str:
        """Return what follows ``sequence``: the finer stamps of ``ts``, µs since 1970 UTC."""
        return f',"ts_us":{ts},"ts_ns":{ts * 1000}' if self._fine else ""

    def origin(self, xmin: str, origin: str, lsn: str) -> str:
        """Return the end of a source block, of JSON texts."""
        told = f',"origin":{origin},"origin_lsn":{lsn}' if self._origins else ""
        return f',"xmin":{xmin}{told}}}'

    def after_source(self, block: str, op: str, stamps: str, unsent: str = "null") -> str:
        """Return what follows the source block, to the value's end; ``unsent`` is the JSON of the names of
        fields that were not sent."""
        end = f',"unsent":{unsent}{self._end}' if self.names_unsent else self._end
        if self._last:
            return f',"op":"{op}",{stamps},"transaction":{block}{end}'
        return f',"transaction":{block},"op":"{op}",{stamps}{end}'
