"""The form of a pipeline's events, which its connector may choose."""

from dataclasses import dataclass

from waltap.changes.events.cell import PLAIN, CellShape
from waltap.changes.mapping.envelope import NEWEST, EnvelopeForm

__all__ = ["EventForm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventForm:
    """Define the form of rows and of their envelope."""

    # The shape of values in rows and keys.
    cell: CellShape = PLAIN
    envelope: EnvelopeForm = NEWEST
