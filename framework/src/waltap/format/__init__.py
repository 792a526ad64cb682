"""The contract of a record format, and what it gives: records."""

from typing import TYPE_CHECKING

from waltap.public_names import on_first_use

if TYPE_CHECKING:
    from waltap.format.format import (
        Format,
        FormatContext,
    )
    from waltap.format.record import (
        Record,
    )
    from waltap.format.record_block import (
        RecordBlock,
    )

__all__ = [
    "Format",
    "FormatContext",
    "Record",
    "RecordBlock",
]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(
        __name__,
        {
            "waltap.format.format": (
                "Format",
                "FormatContext",
            ),
            "waltap.format.record": ("Record",),
            "waltap.format.record_block": ("RecordBlock",),
        },
    )
