"""The note in each commit of a table format."""

from typing import Final

import msgspec

from waltap.base.decode_errors import UNREADABLE

# Version of a table that no commit names.
NOWHERE: Final = -1

# Kind of steps that write rows.
ROWS: Final = "rows"

# Kind of an empty commit, which shows other outputs that this one is active.
SIGN: Final = "sign"


# Delta keeps the note in the commit's ``userMetadata``, Iceberg in the snapshot's summary. Two fields
# have other names there than here:
#
# - ``mark`` is `log_position`,
# - ``stands`` is `named_version`.


class CommitNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The note in a commit: its output, step, and table.

    In a shared target, ``source`` is the only source whose rows the commit touches; step 0 changes
    columns for all sources. ``since`` is the version that restored the table: the step may exist
    before it, but its rows are gone. ``kind`` is the kind of change, and ``until`` the position of
    its last change; a repeated step must have the same. ``named_version`` is the version of a shared
    target that the table's last commit names.
    """

    waltap: str
    step: int
    log_position: str = msgspec.field(name="mark", default="")
    table: str = ""
    source: str = ""
    since: int | None = None
    kind: str = ""
    until: str = ""
    named_version: int = msgspec.field(name="stands", default=NOWHERE)

    @classmethod
    def read(cls, text: str | None) -> "CommitNote | None":
        """Parse a note; None if another program wrote ``text``."""
        try:
            return None if text is None else msgspec.json.decode(text, type=cls)
        except UNREADABLE:
            return None
