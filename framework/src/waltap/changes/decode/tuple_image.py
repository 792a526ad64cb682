"""The tuple: a row's column values as the server sent them.

Values are in relation order. A value is one of

  str        PostgreSQL's text output (the one form every decoder can give, whatever its wire);
  None       SQL NULL;
  UNCHANGED  a value that the server did not send because the update did not touch it (TOAST, or
             any column under an identity that sends only the written columns);
  ABSENT     a column that this image does not have at all (a key-only old tuple).

No code may merge two of these into one.
"""

import enum
from typing import Final, Literal


class MissingValue(enum.Enum):
    """Name the two kinds of missing value, neither of which is NULL."""

    UNCHANGED = "unchanged"
    ABSENT = "absent"

    def __repr__(self) -> str:
        return self.name


# Literal types let mypy narrow a `Value` by identity.
UNCHANGED: Final[Literal[MissingValue.UNCHANGED]] = MissingValue.UNCHANGED
ABSENT: Final[Literal[MissingValue.ABSENT]] = MissingValue.ABSENT

Value = str | None | MissingValue
Tuple = tuple[Value, ...]
