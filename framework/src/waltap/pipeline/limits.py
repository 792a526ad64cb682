"""When a run ends by itself."""

from dataclasses import dataclass

from waltap.events.transaction import TransactionPart

__all__ = ["Limits", "cut"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Ends of a run, each None when it does not apply.

    ``until_idle``: seconds without a change while streaming. ``until_lsn``: everything up to this
    LSN is delivered. ``max_records``: so many records (or changes, for sinks that take changes).
    ``max_seconds``: since the start.
    """

    until_idle: float | None = None
    until_lsn: int | None = None
    max_records: int | None = None
    max_seconds: float | None = None


def cut(parts: list[TransactionPart], events: int) -> list[TransactionPart]:
    """Return the first ``events`` changes of ``parts``; the last part may then be incomplete."""
    kept: list[TransactionPart] = []
    for part in parts:
        if events <= 0:
            break
        if len(part.changes) > events:
            part.changes = part.changes[:events]
            part.complete, part.end_lsn = False, 0
        events -= len(part.changes)
        kept.append(part)
    return kept
