"""Write the envelope text around the rows of an event."""

from waltap.changes.decode.tuple_image import UNCHANGED, Tuple
from waltap.changes.events import EventPlan
from waltap.changes.mapping.envelope import EnvelopeForm
from waltap.changes.mapping.json_schema import quote

__all__ = ["EnvelopeTemplate", "unsent"]


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
        self._fine, self._last, self._origins = (
            form.fine_stamps,
            form.transaction_last,
            form.origins,
        )
        self._end, self.names_unsent = end, form.unsent
        self.no_origin = self.origin("null", "null", "null")

    def stamps(self, now: int) -> str:
        """Return the members with the event's creation time.

        ``now`` is in ns since 1970 UTC.
        """
        fine = f',"ts_us":{now // 1_000},"ts_ns":{now}' if self._fine else ""
        return f'"ts_ms":{now // 1_000_000}{fine}'

    def committed(self, ts: int) -> str:
        """Return the finer commit times, which follow ``sequence``.

        ``ts`` is in µs since 1970 UTC.
        """
        return f',"ts_us":{ts},"ts_ns":{ts * 1000}' if self._fine else ""

    def origin(self, xmin: str, origin: str, lsn: str) -> str:
        """Return the end of a source block from JSON texts."""
        told = f',"origin":{origin},"origin_lsn":{lsn}' if self._origins else ""
        return f',"xmin":{xmin}{told}}}'

    def after_source(self, block: str, op: str, stamps: str, unsent: str = "null") -> str:
        """Return the text from the source block to the value's end.

        ``unsent`` is the JSON list of unsent fields.
        """
        end = f',"unsent":{unsent}{self._end}' if self.names_unsent else self._end
        # Forms differ in the order of members: ``transaction`` comes last or first.
        if self._last:
            return f',"op":"{op}",{stamps},"transaction":{block}{end}'
        return f',"transaction":{block},"op":"{op}",{stamps}{end}'
