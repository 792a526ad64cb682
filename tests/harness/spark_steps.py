"""What may happen to a source and to the tables that follow it, as data, and scripts of it at random.

A step means something in every state: a key that is not there is another one that is. So scripts are found at
random as well (`SCRIPTS`), and each that failed once can be kept as it was printed.
"""

from dataclasses import dataclass
from typing import Final

from hypothesis import strategies as st

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
    """A DELETE that never reaches the change log, which is reported, and an INSERT of the key."""

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


@dataclass(frozen=True)
class SetSchema:
    """ALTER TABLE SET SCHEMA of all tables: an index of `SCHEMAS`; an INSERT tells it."""

    to: int


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
    | SetSchema
)

ADDED: Final[tuple[tuple[str, str | None], ...]] = (
    ("int4", "7"), ("text", None), ("numeric(10,2)", "1.50"), ("date", "2024-02-29"), ("int4", None),
)  # fmt: skip
"""Types of columns, and their defaults."""
SCHEMAS: Final = ("public", "annex", "attic")
NAMES: Final = ("name", "note", "more", "other", "we ird,;{}()=`\n")
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
    change, which is no delete: such a read finds none. A transaction of ``brings`` was read already, and follows.
    ``bare``: also of the table without a key, which then needs a snapshot."""

    kind: str = "incremental"
    keys: tuple[int, ...] = (0, 1, 2)
    unseen: tuple[Action, ...] = ()
    brings: tuple[int, ...] = ()
    bare: bool = False


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
    """Another driver; ``maintains``: somebody makes files few before it comes."""

    maintains: bool = False


Step = Commit | Snapshot | Reread | Again | Apply | Reopen


# --- scripts at random --------------------------------------------------------------------------------

_KEYS = st.integers(0, 7)
_WORDS = st.sampled_from("abc")
_SENT = st.booleans()
_CHANGES = st.one_of(
    st.builds(Insert, _KEYS, _WORDS, st.sampled_from(("long", None))),
    st.builds(Update, _KEYS, _WORDS, _SENT),
    st.builds(Delete, _KEYS),
    st.builds(Move, _KEYS, _KEYS, _SENT),
    st.builds(Rotate, st.integers(2, 4), _SENT, st.none() | _KEYS),
    st.builds(Replace, _KEYS, _WORDS),
    st.builds(Update, _KEYS, _WORDS),
    st.builds(Move, _KEYS, _KEYS),
)
_PLAIN = st.one_of(
    st.builds(Insert, _KEYS, _WORDS), st.builds(Update, _KEYS, _WORDS), st.builds(Delete, _KEYS)
)
_RARE = st.one_of(
    st.builds(Truncate), st.builds(Gap, _KEYS), st.builds(Add, st.integers(0, 4)), st.builds(Drop, _KEYS),
    st.builds(Rename, _KEYS, _KEYS), st.builds(Widen, _KEYS), st.builds(Recreate, _KEYS),
    st.builds(SetSchema, st.integers(1, 2)),
)  # fmt: skip


def _commit_of(first: Action | None, more: list[Action], parts: int, breaks: bool) -> Commit:
    return Commit((*(() if first is None else (first,)), *more), parts, breaks)


_SOME = st.lists(_CHANGES, min_size=2, max_size=6)
_COMMIT = st.builds(_commit_of, st.none(), _SOME, st.integers(1, 3), st.booleans())
_RARELY = st.builds(_commit_of, _RARE, _SOME, st.integers(1, 2), st.just(value=False))
_UNSEEN = st.lists(_PLAIN, max_size=3).map(tuple)
_UNSEEN_BUT_READ = st.lists(
    st.builds(Insert, _KEYS, _WORDS) | st.builds(Update, _KEYS, _WORDS), max_size=3
).map(tuple)
_EVENTS = st.one_of(
    _RARELY, _RARELY,
    st.builds(
        Snapshot, _UNSEEN, st.integers(0, 4),
        st.sampled_from(("goes on", "goes on after a start", "restarts", "anew")),
    ),
    st.builds(
        Reread, st.sampled_from(("incremental", "blocking")),
        st.lists(_KEYS, max_size=4).map(tuple), _UNSEEN_BUT_READ, st.lists(_KEYS, max_size=2).map(tuple),
    ),
    st.builds(Again, st.integers(1, 3)),
    st.builds(Reopen, st.booleans()),
)  # fmt: skip


def _round(before: list[Step], event: Step, behind: list[Step], dies: int) -> list[Step]:
    return [*before, event, *behind, Apply(dies)]


ROUNDS: Final = st.lists(
    st.builds(
        _round, st.lists(_COMMIT, max_size=2), _EVENTS, st.lists(_COMMIT, min_size=1, max_size=2),
        st.integers(-4, 6).map(lambda moment: max(0, moment)),
    ),
    min_size=2, max_size=3,
)  # fmt: skip
"""Each round is applied once."""
SCRIPTS: Final = ROUNDS.map(
    lambda rounds: [
        Commit((Insert(1), Insert(2), Insert(3, "b", None), Insert(5))), Apply(),
        *(step for each in rounds for step in each),
    ]
)  # fmt: skip
