"""The contract of transforms of records, before they are bytes.

A factory gets its validated properties and a `RecordTransformContext`, and returns a function. The
pipeline calls the function once per batch with the records in order: changes, tombstones, heartbeats and
transaction metadata. Notifications have their own calls. The function returns the records for the next
step: the same, changed ones, fewer or more.

* Records and their contents are shared. A transform makes new ones and does not change its input.
* A schema is one object per relation version, and encoders are found by the object. So a transform keeps
  the schema that it made of each schema (`waltap.encoders.format.schema_memory`).
* The result for a record does not depend on the limits of batches.
* A transform raises `RecordUnfit` for a record that it cannot handle. The error's text names fields and
  types. The pipeline stops there (WT-3204), and delivers no record of the batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from waltap.encoders.format.connect_record import ConnectRecord

if TYPE_CHECKING:
    from waltap.changes.capture.capture import CaptureRules

__all__ = ["RecordPredicate", "RecordTransform", "RecordTransformContext", "RecordUnfit"]

RecordTransform = Callable[[list[ConnectRecord]], list[ConnectRecord]]

# Returns whether a transform gets a record. It depends on the record only and has no state.
RecordPredicate = Callable[[ConnectRecord], bool]


class RecordUnfit(ValueError):
    """A transform cannot handle a record.

    The text names fields and types, never a value.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordTransformContext:
    """Give a transform of records the facts about its pipeline."""

    # The transform's name in the profile.
    label: str
    capture: "CaptureRules"
    # The connector's name in events.
    connector: str = "postgresql"
    # Call it once per fault, not once per record.
    warn: Callable[[str], None] = lambda _text: None
    # Returns whether the pipeline must stop. A wait then ends with `StopRequested`.
    stopping: Callable[[], bool] = lambda: False
