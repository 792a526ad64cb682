"""What msgspec raises of stored bytes that are not what was written.

A byte that is no UTF-8 is no ``msgspec.DecodeError``: msgspec lets Python's own error through.
"""

from typing import Final

import msgspec

__all__ = ["UNREADABLE"]

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError)
"""For ``except``: a damaged file, as other than a missing one."""
