"""What may happen to a source and to the tables that follow it, as data.

A step means something in every state: a key that is not there is another one that is. So a script that failed
can be kept as it was printed.
"""

from dataclasses import dataclass
from typing import Final

# --- changes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Insert:
    key: int
    word: str = "a"
    note: str | None = "long"


@dataclass(frozen=True)
class Update:
    key: int
    word: str = "b"
    sent: bool = False
    """Whether the long value is sent: it is another one then."""


@dataclass(frozen=True)
class Delete:
    key: int


@dataclass(frozen=True)
class Move:
    key: int
    to: int
    sent: bool = False


@dataclass(frozen=True)
class Rotate:
    """Rows take one another's keys in one statement; with ``to`` the last one takes a free key."""

    count: int = 2
    sent: bool = False
    to: int | None = None


@dataclass(frozen=True)
class Replace:
    """INSERT beside a row of the same key, then DELETE that one: the key is deferrable."""

    key: int
    word: str = "c"


@dataclass(frozen=True)
class Truncate:
    pass


@dataclass(frozen=True)
class Gap:
    """A DELETE that never reaches the change log, which is told, and an INSERT of the key."""

    key: int
    word: str = "d"


@dataclass(frozen=True)
class Add:
    """ADD COLUMN: of an index of `ADDED`."""

    which: int


@dataclass(frozen=True)
class Drop:
    """DROP COLUMN of one that is no key."""

    which: int


@dataclass(frozen=True)
class Rename:
    """RENAME COLUMN, the key as well; ``to`` is an index of `NAMES`, which may be one that was dropped."""

    which: int
    to: int


@dataclass(frozen=True)
class Widen:
    """ALTER COLUMN TYPE of a number to a wider one."""

    which: int


@dataclass(frozen=True)
class Recreate:
    """DROP TABLE; CREATE TABLE of the first columns; INSERT."""

    key: int


Action = (
    Insert
    | Update
    | Delete
    | Move
    | Rotate
    | Replace
    | Truncate
    | Gap
    | Add
    | Drop
    | Rename
    | Widen
    | Recreate
)

ADDED: Final[tuple[tuple[str, str | None], ...]] = (
    ("int4", "7"), ("text", None), ("numeric(10,2)", "1.50"), ("date", "2024-02-29"), ("int4", None),
)  # fmt: skip
"""Types of columns, and their defaults."""
NAMES: Final = ("name", "note", "more", "other", "Odd one")
WIDER: Final = {"int4": "int8", "numeric(10,2)": "numeric(14,4)"}


# --- steps ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Commit:
    """A transaction, in so many parts; ``breaks``: the sink is opened again before the last one."""

    actions: tuple[Action, ...]
    parts: int = 1
    breaks: bool = False


@dataclass(frozen=True)
class Snapshot:
    """A snapshot that replaces rows. ``unseen`` are changes before it that the stream did not bring.

    ``first`` batches of it are delivered, and tables are applied; then it goes on as ``then`` says: as if
    nothing had been, after the engine was started again, with a table read again from its first row, or anew.
    """

    unseen: tuple[Action, ...] = ()
    first: int = 0
    then: str = "goes on"


@dataclass(frozen=True)
class Reread:
    """Rows that are read beside the stream, as an incremental or a blocking snapshot does; of some ``unseen``
    change. A transaction of ``brings`` was read already, and follows."""

    kind: str = "incremental"
    keys: tuple[int, ...] = (0, 1, 2)
    unseen: tuple[Action, ...] = ()
    brings: tuple[int, ...] = ()


@dataclass(frozen=True)
class Again:
    """A pipeline without its offset reads an older slot: it delivers the last transactions again."""

    count: int


@dataclass(frozen=True)
class Apply:
    """What waits is applied, by a driver that dies at so many writes before (0: it does not)."""

    dies: int = 0


@dataclass(frozen=True)
class Reopen:
    """Another driver; ``tends``: somebody makes files few before it comes."""

    tends: bool = False


Step = Commit | Snapshot | Reread | Again | Apply | Reopen
