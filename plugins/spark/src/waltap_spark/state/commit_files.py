"""Store commits as files, whole or as differences.

::

    _waltap/commits/000000000008.json                  commit 8, whole
    _waltap/commits/000000000009-000000000008.json     commit 9 as a difference; 8 is whole
    _waltap/commits/000000000010-000000000008.json     …

A commit writes only its changes, however many tables and however much history the output has. A
reader reads the newest whole commit and the differences after it, at most `STEPS`.
"""

import re
from collections.abc import Iterator
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
    for name, stored in _stored(type(after)).items():
        old, new = getattr(before, name), getattr(after, name)
        # Identity first: unchanged tables are the same object, and comparing all would cost each
        # commit.
        if name in without or old is new or old == new:
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
    kinds = _kinds(type(before))
    # a later version may have written fields that this one does not have
    names = {stored: name for name, stored in _stored(type(before)).items()}
    values = {
        names[stored]: msgspec.convert(value, kinds[names[stored]])
        for stored, value in found.values.items()
        if stored in names
    }
    for stored, (head, tail, items) in found.runs.items():
        if name := names.get(stored):
            old = getattr(before, name) or ()
            unchanged = old[len(old) - tail :] if tail else ()
            kind = kinds[name]
            made = msgspec.convert(items, kind if get_origin(kind) is tuple else tuple)
            values[name] = (*old[:head], *made, *unchanged)
    return msgspec.structs.replace(before, **values)


@cache
def _stored(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return name → stored name of a struct's fields."""
    return {field.name: field.encode_name for field in msgspec.structs.fields(kind)}


@cache
def _kinds(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(kind)}


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


class CommitFiles(Generic[T]):
    """The commits of one output.

    ``kind`` has the fields ``number`` and ``tables``: name → a struct.
    """

    def __init__(self, store: FileStore, kind: type[T]) -> None:
        self._store, self._kind = store, kind
        # The last written commit; None makes the next one whole.
        self._last: T | None = None
        # Number of the whole commit that differences build on.
        self._since = -1
        self._steps = 0

    def newest(self) -> T | None:
        """Return the newest commit, None before the first.

        Raises: OutputDamaged.
        """
        found = self._listed(1)
        return found[-1] if found else None

    def readable(self) -> list[T]:
        """Return the commits that can still be read, oldest first.

        Raises: OutputDamaged.
        """
        return self._listed(MAX_COMMITS)

    def _listed(self, most: int) -> list[T]:
        """Return the newest commits, oldest first.

        Raises: OutputDamaged.
        """
        # Listing and reading are not atomic: a driver may remove the oldest file in between.
        for tried in range(TRIES):
            names = self._names()[-most:]
            found: list[T] = []
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

    def write(self, state: T) -> None:
        """Publish ``state`` atomically; then remove old commits."""
        number, before = _number(state), self._last
        # Without the commit before (a new driver, a failed write) there is nothing to differ from.
        if before is not None and number == _number(before) + 1 and self._steps < STEPS:
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

    def _resolved(self, name: str) -> T:
        since = _since(name)
        if since is None:
            return self._full_state(name)
        state = self._full_state(f"{since:012d}.json")
        for number in range(since + 1, _of(name) + 1):
            state = self._after(state, f"{number:012d}-{since:012d}.json")
        return state

    def _following(self, before: T | None, name: str) -> T:
        if _since(name) is not None and before is not None and _number(before) == _of(name) - 1:
            return self._after(before, name)
        return self._resolved(name)

    def _full_state(self, name: str) -> T:
        return read_document(self._store, f"{COMMITS}/{name}", self._kind, NO_COMMIT)

    def _after(self, state: T, name: str) -> T:
        path = f"{COMMITS}/{name}"
        step = read_document(self._store, path, _CommitDifference, NO_COMMIT)
        try:
            return self._stepped(state, step)
        except (*UNREADABLE, KeyError) as cause:
            text = f"{path} {NO_COMMIT}: {cause}"
            raise OutputDamaged(text, path=self._store.uri(path)) from cause

    def _stepped(self, state: T, step: _CommitDifference) -> T:
        before: dict[str, Any] = getattr(state, "tables")  # noqa: B009 - every kind has the field
        tables = dict(before)
        for name in step.gone:
            tables.pop(name, None)
        for name, found in step.tables.items():
            tables[name] = changed(tables[name], found)
        tables |= msgspec.convert(step.new, _kinds(self._kind)["tables"])
        return msgspec.structs.replace(changed(state, step.state), tables=tables)

    def _missing(self, newest: str) -> SinkError:
        there = set(self._names())
        since = _since(newest)
        wanted: Iterator[str] = (
            f"{number:012d}-{since:012d}.json" for number in range((since or 0) + 1, _of(newest))
        )
        first = next((n for n in (f"{since:012d}.json", *wanted) if n not in there), newest)
        text = f"{COMMITS}/{first} is missing, on which {newest} builds"
        return OutputDamaged(text, path=self._store.uri(f"{COMMITS}/{first}"))


def _step(before: msgspec.Struct, after: msgspec.Struct) -> _CommitDifference:
    old: dict[str, msgspec.Struct] = getattr(before, "tables")  # noqa: B009
    new: dict[str, msgspec.Struct] = getattr(after, "tables")  # noqa: B009
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


def _number(state: msgspec.Struct) -> int:
    number: int = getattr(state, "number")  # noqa: B009
    return number


def _of(name: str) -> int:
    return int(name[:12])


def _since(name: str) -> int | None:
    match = _NAME.fullmatch(name)
    return int(match[2]) if match is not None and match[2] else None
