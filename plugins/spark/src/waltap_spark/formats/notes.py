"""What a commit of a table format says of itself."""

from typing import Final

import msgspec

from waltap.base.decode_errors import UNREADABLE

__all__ = ["NOWHERE", "ROWS", "SIGN", "CommitNote"]

NOWHERE: Final = -1
"""Where a table stands of which no commit names anything."""

ROWS: Final = "rows"
"""The kind of steps that write what changes came to."""

SIGN: Final = "sign"
"""That of commits which change nothing, and show that an output is there."""


class CommitNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a commit of the format says of itself: the output it belongs to, its step, and the table whose
    step it is, "" where an earlier version made it. ``source``: of a target that is shared, the source
    whose rows alone it touches; step 0 changes columns for all of them. ``since``: the version by
    which the table was brought back to what it was: the step may have been taken before that, and is
    gone. ``kind`` is what was done, ``until`` the mark up to which the changes go that it was done for:
    who repeats the step does the same. Earlier versions told neither. ``stands``: of a target that is
    shared, the version that the last commit of the table names."""

    waltap: str
    step: int
    mark: str = ""
    table: str = ""
    source: str = ""
    since: int | None = None
    kind: str = ""
    until: str = ""
    stands: int = NOWHERE

    @classmethod
    def read(cls, text: str | None) -> "CommitNote | None":
        """Return the note that ``text`` is, None where it is none, or somebody else's."""
        try:
            return None if text is None else msgspec.json.decode(text, type=cls)
        except UNREADABLE:
            return None
