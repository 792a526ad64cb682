"""The contract of transforms of records: Connect records in, Connect records out, before they are bytes.

A factory gets its validated properties and a `RecordTransformContext`, and gives a function that is called
once per batch with its records, in order: changes, tombstones, heartbeats, transaction metadata, and
notifications (by themselves). It returns the records to go on with: the same, others in their place, fewer
or more.

* Records and all that is in them are shared: a transform makes new ones and changes none it was given.
* A schema is one object per relation version. What a transform makes of one it keeps
  (`waltap.format.schema_memory`), so that the records of one schema have one schema after it: encoders are
  looked up by the object.
* What becomes of a record does not depend on where batches are cut.
* A record that it cannot work on raises `RecordUnfit`, whose text names fields and types. The pipeline
  stops there (WT-3204), and nothing of the batch is delivered.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from waltap.format.connect_record import ConnectRecord

if TYPE_CHECKING:
    from waltap.capture.capture import CaptureRules

__all__ = ["RecordPredicate", "RecordTransform", "RecordTransformContext", "RecordUnfit"]

RecordTransform = Callable[[list[ConnectRecord]], list[ConnectRecord]]

RecordPredicate = Callable[[ConnectRecord], bool]
"""Tells whether a transform concerns a record; it looks at nothing else, and keeps nothing."""


class RecordUnfit(ValueError):
    """A transform cannot work on a record; the text names fields and types, never a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordTransformContext:
    """What a transform of records may know: what its profile calls it, what the pipeline captures, the
    name of the connector in events, whom to warn (once is enough), and whether a stop was asked for: a
    wait ends then, with `StopRequested`."""

    label: str
    capture: "CaptureRules"
    connector: str = "postgresql"
    warn: Callable[[str], None] = lambda _text: None
    stopping: Callable[[], bool] = lambda: False
