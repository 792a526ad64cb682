"""The contracts of record formats and of transforms of records."""

from typing import TYPE_CHECKING

from waltap.public_names import on_first_use

if TYPE_CHECKING:
    from waltap.format.connect_record import ConnectRecord
    from waltap.format.format import Format, FormatContext
    from waltap.format.record import Record
    from waltap.format.record_block import RecordBlock
    from waltap.format.record_transform import RecordTransformContext, RecordUnfit
    from waltap.format.schema_memory import SchemaMemory

__all__ = [
    "ConnectRecord",
    "Format",
    "FormatContext",
    "Record",
    "RecordBlock",
    "RecordTransformContext",
    "RecordUnfit",
    "SchemaMemory",
]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__)
