"""List the exceptions of msgspec for damaged stored bytes.

Invalid UTF-8 raises Python's own UnicodeDecodeError, not ``msgspec.DecodeError``.
"""

from typing import Final

import msgspec

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError)
"""For ``except``: a damaged file, unlike a missing one."""
