"""The contracts of record formats and of transforms of records."""

from typing import TYPE_CHECKING

from waltap.base.import_rules import on_first_use

if TYPE_CHECKING:
    from waltap.changes.events.event import Record
    from waltap.encoders.format.format import Format, FormatContext
    from waltap.encoders.format.record_block import MixedRecords, RecordBlock
    from waltap.encoders.format.record_transform import (
        ConnectRecord,
        RecordTransformContext,
        RecordUnfit,
        SchemaMemory,
    )

__all__ = [
    "ConnectRecord",
    "Format",
    "FormatContext",
    "MixedRecords",
    "Record",
    "RecordBlock",
    "RecordTransformContext",
    "RecordUnfit",
    "SchemaMemory",
]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__)
