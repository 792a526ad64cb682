"""What was committed, from a second slot: the text of ``test_decoding`` read into transactions.

The source writes a transactional message beside each DDL statement (`MARK`), with an image of the
tables that it left: so the oracle also knows names, keys and rows that no row change shows.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tests.hunt.values import from_text

MARK: Final = "hunt"


class _Unsent:
    def __repr__(self) -> str:
        return "UNSENT"


UNSENT: Final = _Unsent()
"""A value that was not touched and is not in the WAL."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """One row change, or a TRUNCATE of one table. ``types`` is column → type; nulls of ``old`` are left out."""

    op: str
    table: str
    old: Row | None = None
    new: Row | None = None
    types: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ddl:
    """What a DDL statement left: tables gone, renamed, and the images of those it touched."""

    gone: tuple[str, ...]
    renamed: dict[str, str]
    tables: dict[str, "Table"]


@dataclass(slots=True)
class Transaction:
    xid: int
    commit_lsn: int = 0
    """LSN at which the commit's record ends."""
    items: list[Change | Ddl] = field(default_factory=list)


@dataclass(slots=True)
class Table:
    """A table at one moment. ``rows``: every row, values canonical; ``key``: what shows rows apart."""

    oid: int
    columns: dict[str, str]
    key: tuple[str, ...]
    primary_key: tuple[str, ...]
    identity: str
    generated: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    rows: list[Row] = field(default_factory=list)

    def find(self, image: Row) -> int | None:
        """Return the index of the row that ``image`` (a key, or a whole row without its nulls) is of."""
        names = self.key or tuple(self.columns)
        if self.key and any(name not in image for name in names):
            return None
        wanted = [image.get(name) for name in names if name not in self.generated]
        for index, row in enumerate(self.rows):
            if [row.get(name) for name in names if name not in self.generated] == wanted:
                return index
        return None


class State:
    """The rows of every table after what was applied so far."""

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}

    def apply(self, item: Change | Ddl) -> Row | None:
        """Apply; return the whole new row of an insert or update."""
        if isinstance(item, Ddl):
            for name in item.gone:
                self.tables.pop(name, None)
            moving = {n: self.tables.pop(o) for o, n in item.renamed.items() if o in self.tables}
            self.tables.update(moving)
            for name, image in item.tables.items():
                rows = [dict(row) for row in image.rows]
                self.tables[name] = Table(
                    image.oid, image.columns, image.key, image.primary_key, image.identity,
                    image.generated, image.required, rows,
                )  # fmt: skip
            return None
        table = self.tables.get(item.table)
        if table is None:
            return None
        if item.op == "t":
            table.rows.clear()
            return None
        if item.op == "c":
            assert item.new is not None
            table.rows.append(dict(item.new))
            return item.new
        at = table.find((item.new or {}) if item.old is None else item.old)
        if item.op == "d":
            if at is not None:
                table.rows.pop(at)
            return None
        assert item.new is not None
        before = table.rows.pop(at) if at is not None else {}
        after = {n: before.get(n, UNSENT) if v is UNSENT else v for n, v in item.new.items()}
        table.rows.append(after)
        return after


def read(lines: Iterable[tuple[str, int, str]]) -> Iterator[Transaction]:
    """Return the transactions of (LSN text, xid, data) as pg_logical_slot_get_changes gives them."""
    current: Transaction | None = None
    for lsn, xid, data in lines:
        if data.startswith("BEGIN"):
            current = Transaction(int(xid))
        elif data.startswith("COMMIT") and current is not None:
            current.commit_lsn = _lsn(lsn)
            yield current
            current = None
        elif current is not None:
            current.items.extend(_items(data))


def _lsn(text: str) -> int:
    high, low = text.split("/")
    return (int(high, 16) << 32) | int(low, 16)


_MESSAGE = re.compile(r"message: transactional: 1 prefix: (\S+), sz: \d+ content:(.*)", re.DOTALL)


def _items(data: str) -> Iterator[Change | Ddl]:
    if found := _MESSAGE.match(data):
        if found[1] == MARK:
            yield parse_mark(found[2])
        return
    if not data.startswith("table "):
        return
    names, at = _tables(data, len("table "))
    rest = data[at:]
    if rest.startswith("TRUNCATE"):
        yield from (Change("t", name) for name in names)
    elif rest.startswith("INSERT: "):
        new, types = _cells(rest.removeprefix("INSERT: "))
        yield Change("c", names[0], None, new, types)
    elif rest.startswith("DELETE: "):
        old, types = _cells(rest.removeprefix("DELETE: "))
        yield Change("d", names[0], old, None, types)
    elif rest.startswith("UPDATE: "):
        old, types, more = None, {}, rest.removeprefix("UPDATE: ")
        if more.startswith("old-key: "):
            old, types, more = _cells_until(more.removeprefix("old-key: "), "new-tuple:")
        new, later = _cells(more)
        yield Change("u", names[0], old, new, types | later)


def parse_mark(text: str) -> Ddl:
    """Return what a marker's JSON says."""
    reported = json.loads(text)
    tables = {}
    for name, image in reported["tables"].items():
        columns = dict(image["columns"])
        rows = [
            {n: from_text(t, v) for (n, t), v in zip(image["columns"], row, strict=True)}
            for row in image["rows"]
        ]
        tables[name] = Table(
            image["oid"], columns, tuple(image["key"]), tuple(image["primary_key"]),
            image["identity"], frozenset(image["generated"]), frozenset(image["required"]), rows,
        )  # fmt: skip
    return Ddl(tuple(reported["gone"]), reported["renamed"], tables)


def _identifier(text: str, at: int) -> tuple[str, int]:
    if text[at] != '"':
        found = re.compile(r"[^\s.,:\[]+").match(text, at)
        assert found, text[at : at + 40]
        return found[0], found.end()
    end = at + 1
    while True:
        end = text.index('"', end)
        if text[end : end + 2] != '""':
            return text[at + 1 : end].replace('""', '"'), end + 1
        end += 2


def _tables(text: str, at: int) -> tuple[list[str], int]:
    """Return the tables named from ``at`` on as schema.table, and where what follows ': ' begins."""
    names = []
    while True:
        schema, at = _identifier(text, at)
        table, at = _identifier(text, at + 1)
        names.append(f"{schema}.{table}")
        if text[at : at + 2] == ": ":
            return names, at + 2
        at += 2  # ", "


def _cells(text: str) -> tuple[Row, dict[str, str]]:
    row, types, _rest = _cells_until(text, None)
    return row, types


def _cells_until(text: str, stop: str | None) -> tuple[Row, dict[str, str], str]:
    row: Row = {}
    types: dict[str, str] = {}
    at = 0
    while at < len(text):
        if text[at] == " ":
            at += 1
            continue
        if stop and text.startswith(stop, at):
            return row, types, text[at + len(stop) :]
        if text.startswith("(no-tuple-data)", at):
            break
        name, at = _identifier(text, at)
        end = text.index("]:", at)
        types[name] = text[at + 1 : end]
        value, at = _value(text, end + 2)
        row[name] = UNSENT if value is UNSENT else from_text(types[name], value)
    return row, types, ""


def _value(text: str, at: int) -> tuple[Any, int]:
    if text[at : at + 1] == "'":
        end = at + 1
        while True:
            end = text.index("'", end)
            if text[end : end + 2] != "''":
                return text[at + 1 : end].replace("''", "'"), end + 1
            end += 2
    end = text.find(" ", at)
    end = len(text) if end < 0 else end
    word = text[at:end]
    if word == "unchanged-toast-datum":
        return UNSENT, end
    return (None if word == "null" else word), end
