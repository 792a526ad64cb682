"""Store commits as files, whole or as differences.

::

    _waltap/commits/000000000008.json                  commit 8, whole
    _waltap/commits/000000000009-000000000008.json     commit 9 as a difference; 8 is whole
    _waltap/commits/000000000010-000000000008.json     …

A commit writes only its changes, however many tables and however much history the output has. A
reader reads the newest whole commit and the differences after it, at most `STEPS`.
"""

import re
from functools import cache
from typing import Any, Final, Generic, TypeVar, get_origin

import msgspec

from waltap.base.files.durable_file import UNREADABLE
from waltap.base.files.errors import FilesUnavailable
from waltap.base.files.store import FileStore
from waltap.errors import SinkError
from waltap_spark.errors import OutputDamaged

COMMITS: Final = "_waltap/commits"
# Most differences after a complete commit. A reader opens them all, so the number is small; a
# complete commit of a large output is hundreds of kilobytes, so it is not every one.
STEPS: Final = 16

# Former commits that readers can still read: those that opened the tables a moment ago.
MAX_COMMITS: Final = 10

# Attempts to read commits while a driver removes old ones.
TRIES: Final = 5
NO_COMMIT: Final = "is not a commit"
_NAME: Final = re.compile(r"(\d{12})(?:-(\d{12}))?\.json")

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T", bound=msgspec.Struct)


class NumberedState(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of an output's state that its commits need."""

    number: int
    # Name → a struct.
    tables: dict[str, Any] = {}


C = TypeVar("C", bound=NumberedState)


def read_document(store: FileStore, path: str, kind: type[T], problem: str) -> T:
    """Return the JSON at ``path``. Raises: OutputDamaged with ``problem``."""
    try:
        return msgspec.json.decode(store.read(path), type=kind)
    except UNREADABLE as cause:
        raise OutputDamaged(f"{path} {problem}: {cause}", path=store.uri(path)) from cause


class StructDifference(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Difference between two structs of one type.

    Fields have their stored names.
    """

    # Fields with another value.
    values: dict[str, Any] = {}
    # Sequences: how many items stay at the start and at the end, and the items in between.
    runs: dict[str, tuple[int, int, list[Any]]] = {}


def difference(before: msgspec.Struct, after: msgspec.Struct, *without: str) -> StructDifference:
    """Return the difference that leads from ``before`` to ``after``."""
    values: dict[str, Any] = {}
    runs: dict[str, tuple[int, int, list[Any]]] = {}
    for stored, field in _fields(type(after)).items():
        old, new = getattr(before, field.name), getattr(after, field.name)
        # Identity first: unchanged tables are the same object, and comparing all would cost each
        # commit.
        if field.name in without or old is new or old == new:
            continue
        # histories are long tuples that mostly grow at the end
        if isinstance(old, tuple) and isinstance(new, tuple):
            runs[stored] = _run(old, new)
        else:
            values[stored] = msgspec.to_builtins(new)
    return StructDifference(values=values, runs=runs)


def changed(before: S, found: StructDifference) -> S:
    """Return ``before`` with the difference applied.

    Raises: ValidationError.
    """
    # a later version may have written fields that this one does not have
    fields = _fields(type(before))
    values = {
        fields[stored].name: msgspec.convert(value, fields[stored].type)
        for stored, value in found.values.items()
        if stored in fields
    }
    for stored, (head, tail, items) in found.runs.items():
        if field := fields.get(stored):
            old = getattr(before, field.name) or ()
            unchanged = old[len(old) - tail :] if tail else ()
            kind = field.type if get_origin(field.type) is tuple else tuple
            values[field.name] = (*old[:head], *msgspec.convert(items, kind), *unchanged)
    return msgspec.structs.replace(before, **values)


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    """Return stored name → field of a struct."""
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def _run(old: tuple[Any, ...], new: tuple[Any, ...]) -> tuple[int, int, list[Any]]:
    least = min(len(old), len(new))
    head = 0
    while head < least and (old[head] is new[head] or old[head] == new[head]):
        head += 1
    tail = 0
    while tail < least - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    return head, tail, msgspec.to_builtins(new[head : len(new) - tail])


class _CommitDifference(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A commit as its difference from the one before."""

    state: StructDifference
    tables: dict[str, StructDifference] = {}
    # Tables that the commit adds.
    new: dict[str, Any] = {}
    # Tables that the commit removes.
    gone: tuple[str, ...] = ()


class CommitFiles(Generic[C]):
    """The commits of one output."""

    def __init__(self, store: FileStore, kind: type[C]) -> None:
        self._store, self._kind = store, kind
        # The last written commit; None makes the next one whole.
        self._last: C | None = None
        # Number of the whole commit that differences build on.
        self._since = -1
        self._steps = 0

    def newest(self, most: int) -> list[C]:
        """Return the newest commits, oldest first.

        Raises: OutputDamaged.
        """
        # Listing and reading are not atomic: a driver may remove the oldest file in between.
        for tried in range(TRIES):
            names = self._names()[-most:]
            found: list[C] = []
            for name in names:
                try:
                    found.append(self._following(found[-1] if found else None, name))
                except FilesUnavailable as error:  # a driver removed it after the listing
                    if not isinstance(error.__cause__, FileNotFoundError):
                        raise
                    if tried == TRIES - 1:
                        raise self._missing(name) from error
                    break
            if len(found) == len(names):
                return found
        return []

    def write(self, state: C) -> None:
        """Publish ``state`` atomically; then remove old commits."""
        number, before = state.number, self._last
        # Without the commit before (a new driver, a failed write) there is nothing to differ from.
        if before is not None and number == before.number + 1 and self._steps < STEPS:
            name = f"{number:012d}-{self._since:012d}.json"
            data = msgspec.json.encode(_step(before, state))
            self._last = None  # if publishing fails, the next commit is whole
            self._store.publish(f"{COMMITS}/{name}", data + b"\n")
            self._steps += 1
        else:
            self._last = None
            self._store.publish(f"{COMMITS}/{number:012d}.json", msgspec.json.encode(state) + b"\n")
            self._since, self._steps = number, 0
        self._last = state
        self._tidy()

    def forget(self) -> None:
        """Forget the last written commit: another process may write now."""
        self._last = None

    def _names(self) -> list[str]:
        return [name for name in self._store.names(COMMITS) if _NAME.fullmatch(name)]

    def _tidy(self) -> None:
        names = self._names()
        readable = names[-MAX_COMMITS:]
        first = _since(readable[0])
        # differences need the whole commit that they build on
        oldest = _of(readable[0]) if first is None else first
        for name in names[:-MAX_COMMITS]:
            if _of(name) < oldest:
                self._store.delete(f"{COMMITS}/{name}")

    def _following(self, before: C | None, name: str) -> C:
        """Return the commit ``name``; ``before`` may be the one before it."""
        since, first = _since(name), _of(name)
        if since is None or before is None or before.number != first - 1:
            whole = first if since is None else since
            path = f"{COMMITS}/{whole:012d}.json"
            before, first = read_document(self._store, path, self._kind, NO_COMMIT), whole + 1
        for number in range(first, _of(name) + 1):
            before = self._after(before, f"{number:012d}-{since:012d}.json")
        return before

    def _after(self, state: C, name: str) -> C:
        path = f"{COMMITS}/{name}"
        step = read_document(self._store, path, _CommitDifference, NO_COMMIT)
        try:
            return self._stepped(state, step)
        except (*UNREADABLE, KeyError) as cause:
            text = f"{path} {NO_COMMIT}: {cause}"
            raise OutputDamaged(text, path=self._store.uri(path)) from cause

    def _stepped(self, state: C, step: _CommitDifference) -> C:
        tables = dict(state.tables)
        for name in step.gone:
            tables.pop(name, None)
        for name, found in step.tables.items():
            tables[name] = changed(tables[name], found)
        tables |= msgspec.convert(step.new, _fields(self._kind)["tables"].type)
        return msgspec.structs.replace(changed(state, step.state), tables=tables)

    def _missing(self, newest: str) -> SinkError:
        there = set(self._names())
        since = _since(newest)
        wanted = (
            f"{number:012d}-{since:012d}.json" for number in range((since or 0) + 1, _of(newest))
        )
        first = next((n for n in (f"{since:012d}.json", *wanted) if n not in there), newest)
        text = f"{COMMITS}/{first} is missing, on which {newest} builds"
        return OutputDamaged(text, path=self._store.uri(f"{COMMITS}/{first}"))


def _step(before: NumberedState, after: NumberedState) -> _CommitDifference:
    old, new = before.tables, after.tables
    return _CommitDifference(
        state=difference(before, after, "tables"),
        tables={
            name: difference(old[name], table)
            for name, table in new.items()
            if name in old and table is not old[name] and table != old[name]
        },
        new={name: msgspec.to_builtins(table) for name, table in new.items() if name not in old},
        gone=tuple(name for name in old if name not in new),
    )


def _of(name: str) -> int:
    return int(name[:12])


def _since(name: str) -> int | None:
    match = _NAME.fullmatch(name)
    return int(match[2]) if match is not None and match[2] else None
