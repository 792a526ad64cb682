"""Find the tables that the source renamed.

An entry of the change log has its table's name and its number in the source (OID). An entry with a
known number under another name shows that this table was renamed: it continues under the new
name, with its rows and history. A number of an earlier epoch counts only together with a name that the
table had, since the same number may be another table's now.

Nothing reports a rename before the table's next change. But when a table takes another one's name,
its entries name the former owner and the owner's present name, if the source still has it
(`TableEntry.former_owner`). Without that:

- a renamed table takes a name whose owner is not seen again: that owner was dropped, or was renamed
  and did not change. It keeps its rows under a spare name, NAME@NUMBER, until a change brings its own;
- a new table takes a name: the former owner was renamed if it has a change within the same commit.
  Otherwise the name was dropped and created again.

This module does not import Spark.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from waltap_sinks.changelog.manifest import Manifest, TableEntry
from waltap_spark.state.output import EntryId, TableState

log = logging.getLogger(__name__)

# Most former names of a table that are kept.
FORMER_MOST: Final = 100

# Schema and table.
Name = tuple[str, str]

DISPLACED: Final = (
    "another table took its name; it was dropped, or renamed and not changed since: its next "
    "change brings its name"
)


@dataclass(slots=True)
class _Table:
    """A table while the entries are read.

    ``number`` is its epoch and OID, None if unknown.
    """

    name: Name
    number: tuple[int, int] | None
    # Its name before, None for a new table.
    before: str | None = None
    # Names that it had meanwhile.
    former_names: list[str] = field(default_factory=list)
    displaced: bool = False
    # Its place in the list of all.
    place: int = 0
    # Its name in the source while it is displaced, if known.
    present: Name | None = None
    entries: dict[EntryId, None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableRenames:
    """The tables of a commit by their names after it."""

    # Name before → the name after, of the tables that were renamed.
    renamed: Mapping[str, Name]
    # The renamed ones whose name another table took.
    displaced: frozenset[str]
    # Entry → its table's name after; None if each has its table's name.
    routes: Mapping[EntryId, Name] | None
    # Name before → epoch and OID of the last entry.
    numbers: Mapping[str, tuple[int, int]]
    # Name before → names that the table had, and left, since.
    former_names: Mapping[str, Sequence[str]]

    def names(self, before: Iterable[str]) -> list[str]:
        """Return the names after of tables called ``before``."""
        return [".".join(self.renamed[name]) if name in self.renamed else name for name in before]

    def report(self) -> None:
        for before, name in self.renamed.items():
            if before in self.displaced:
                log.warning("%s is stored as %s: %s", before, ".".join(name), DISPLACED)
            else:
                log.info("%s was renamed in the source, and is %s now", before, ".".join(name))

    def applied(self, tables: Mapping[str, TableState], *, in_place: bool) -> dict[str, TableState]:
        """Return ``tables`` by their names after.

        Suspended tables note the entries that wait for them. ``in_place``: a renamed table's rows
        stay where they are.
        """
        if self.routes is None:
            return dict(tables)
        waits: dict[Name, list[EntryId]] = {}
        for entry, name in self.routes.items():
            waits.setdefault(name, []).append(entry)
        found = {}
        for before, had in tables.items():
            table = self._renamed(had, in_place=in_place) if before in self.renamed else had
            table = self._met(before, table)
            more = waits.get((table.schema, table.table), ())
            if table.failed and more:
                table = replace(table, waits=joined(table.waits, more))
            found[table.name] = table
        return found

    def _met(self, before: str, table: TableState) -> TableState:
        """Return ``table`` with its former names and number's epoch."""
        former_names = tuple(
            dict.fromkeys((*table.former_names, *self.former_names.get(before, ())))
        )
        epoch, oid = self.numbers.get(before, (0, 0))
        known = epoch if oid == table.oid and not table.failed else table.oid_epoch
        if (former_names, known) == (table.former_names, table.oid_epoch):
            return table
        former_names = former_names[-FORMER_MOST:]
        return replace(table, former_names=former_names, oid_epoch=known)

    def _renamed(self, table: TableState, *, in_place: bool) -> TableState:
        schema, name = self.renamed[table.name]
        stale = tuple(each for each in table.stale if each != DISPLACED)
        return replace(
            table,
            schema=schema,
            table=name,
            stored_at=table.stored_at or ((table.schema, table.table) if in_place else None),
            stale=(*stale, DISPLACED) if table.name in self.displaced else stale,
        )


UNCHANGED: Final = TableRenames({}, frozenset(), None, {}, {})


def entry_id(epoch: int, entry: TableEntry) -> EntryId:
    """Return the identification of the table of ``entry``."""
    return epoch, entry.name, entry.oid


def joined(had: Iterable[EntryId], more: Iterable[EntryId]) -> tuple[EntryId, ...]:
    """Return both in order, each entry at its last place."""
    new = dict.fromkeys(more)
    return (*(each for each in had if each not in new), *new)


def find_renames(manifests: Iterable[Manifest], tables: Mapping[str, TableState]) -> TableRenames:
    """Return the renames that ``manifests`` report for ``tables``.

    In nearly every commit each entry is of the table that has its name (`UNCHANGED`).
    """
    entries = [
        (manifest.log_position.epoch, entry) for manifest in manifests for entry in manifest.tables
    ]
    named = ((epoch, entry.oid, tables.get(entry.name)) for epoch, entry in entries)
    if all(
        each and oid and (each.oid_epoch, each.oid, each.failed) == (epoch, oid, "")
        for epoch, oid, each in named
    ):
        return UNCHANGED
    last = {(epoch, entry.oid): at for at, (epoch, entry) in enumerate(entries)}
    walk = _Walk(tables)
    for at, (epoch, entry) in enumerate(entries):
        walk.take(epoch, entry, {n for n in walk.owner_numbers(entry) if last.get(n, -1) > at})
    return walk.result()


class _Walk:
    """Follows the tables from entry to entry."""

    def __init__(self, tables: Mapping[str, TableState]) -> None:
        self._named: dict[str, _Table] = {}
        self._numbered: dict[tuple[int, int], _Table] = {}
        # (former name, number in the source) → table.
        self._formerly: dict[tuple[str, int], _Table] = {}
        self._all: list[_Table] = []
        # Displaced tables whose present names are known, by their place in the list of all.
        self._renameable: dict[int, _Table] = {}
        for name, state in tables.items():
            found = _Table((state.schema, state.table), _number(state), before=name)
            self._add(name, found)
            if found.number is not None:
                self._numbered[found.number] = found
                _epoch, oid = found.number
                self._formerly |= {
                    (former, each): found
                    for former in state.former_names
                    for each in (*state.former, oid)
                }

    def _add(self, name: str, table: _Table) -> None:
        self._named[name] = table
        table.place = len(self._all)
        self._all.append(table)

    def owner_numbers(self, entry: TableEntry) -> "set[tuple[int, int]]":
        """Return the number of the table with the entry's name now."""
        owner = self._named.get(entry.name)
        return set() if owner is None or owner.number is None else {owner.number}

    def take(self, epoch: int, entry: TableEntry, again: "set[tuple[int, int]]") -> None:
        """Find the table of ``entry``; numbers ``again`` have a later entry."""
        number = (epoch, entry.oid) if entry.oid else None
        own, entry = entry_id(epoch, entry), self._distinct(entry)
        owner = self._without_former(entry, number)
        table = owner if number is None else self._known(number, entry, owner)
        if table is None and owner is not None:
            other = number is not None and owner.number is not None and owner.number != number
            if other and owner.number in again:
                self._displace(owner)
            else:
                table = owner
        elif table is not None and table is not owner:
            self._rename(table, entry, owner)
        if table is None:
            table = _Table((entry.schema, entry.table), None)
            self._add(entry.name, table)
        if number is not None and table.number != number:
            if table.number is not None:
                self._numbered.pop(table.number, None)
            table.number = number
            self._numbered[number] = table
        table.entries.pop(own, None)
        table.entries[own] = None
        self._rename_displaced()

    def _distinct(self, entry: TableEntry) -> TableEntry:
        """Return ``entry``, with a spare name if another's reads alike.

        Such are ``c`` of schema ``a.b``, and ``b.c`` of schema ``a``.
        """
        owner = self._named.get(entry.name)
        if owner is None or owner.name == (entry.schema, entry.table):
            return entry
        known = owner.number is not None and owner.number[1] == entry.oid
        return entry if known else replace(entry, table=f"{entry.table}@{entry.oid}")

    def _without_former(self, entry: TableEntry, number: tuple[int, int] | None) -> _Table | None:
        """Return the name's owner, None if it was renamed."""
        owner, former = self._named.get(entry.name), entry.former_owner
        if (
            owner is None
            or former is None
            or owner.number is None
            or number is None
            or owner.number[1] != former.oid
            or owner.number[1] == entry.oid
        ):
            return owner
        owner.present = former.schema, former.table
        self._displace(owner)
        return None

    def _rename_displaced(self) -> None:
        """Give displaced tables their present names, where free."""
        for _place, table in sorted(self._renameable.items()):
            name = table.present
            if table.displaced and name is not None and ".".join(name) not in self._named:
                self._leave(table)
                table.name, table.displaced = name, False
                self._named[".".join(name)] = table
        if self._renameable:
            there = self._renameable.items()
            self._renameable = {place: table for place, table in there if table.displaced}

    def _known(
        self, number: tuple[int, int], entry: TableEntry, owner: _Table | None
    ) -> _Table | None:
        """Return the table with the number; ``owner`` has the entry's name."""
        if owner is not None and owner.number is not None and owner.number[1] == entry.oid:
            return owner
        found = self._numbered.get(number)
        # a pipeline without its offset reads changes of before the rename again
        past = self._formerly.get((entry.name, entry.oid)) if found is None else None
        if past is not None and past.number is not None and past.number[0] < number[0]:
            return past
        return found

    def _rename(self, table: _Table, entry: TableEntry, owner: _Table | None) -> None:
        if owner is not None:
            self._displace(owner)
        self._leave(table)
        table.name, table.displaced = (entry.schema, entry.table), False
        self._named[entry.name] = table

    def _leave(self, table: _Table) -> None:
        name = ".".join(table.name)
        del self._named[name]
        if not table.displaced:
            table.former_names.append(name)
            if table.number is not None:
                self._formerly[name, table.number[1]] = table

    def _displace(self, table: _Table) -> None:
        """Give ``table`` a spare name."""
        schema, name = table.name
        _epoch, oid = table.number or (0, 0)
        self._leave(table)
        spare = f"{name}@{oid}"
        while f"{schema}.{spare}" in self._named:
            spare += "'"
        table.name, table.displaced = (schema, spare), True
        self._named[f"{schema}.{spare}"] = table
        if table.present is not None:
            self._renameable[table.place] = table

    def result(self) -> TableRenames:
        known = {table.before: table for table in self._all if table.before is not None}
        moved = {name: each for name, each in known.items() if name != ".".join(each.name)}
        seen = {name: each.number for name, each in known.items() if each.entries}
        return TableRenames(
            {name: each.name for name, each in moved.items()},
            frozenset(name for name, each in moved.items() if each.displaced),
            {entry: each.name for each in self._all for entry in each.entries},
            {name: number for name, number in seen.items() if number is not None},
            {name: each.former_names for name, each in known.items()},
        )


def _number(table: TableState) -> tuple[int, int] | None:
    """Return the epoch and number of ``table`` at the output's position."""
    for epoch, _name, oid in reversed(table.waits):
        if oid:
            return epoch, oid
    epoch, oid = table.oid_epoch, table.oid
    if not oid and table.staged:  # its first snapshot is not complete
        oid = table.staged[-1].oid
    return (epoch, oid) if oid and epoch else None


def catalogue_name(table: TableState) -> Name:
    """Return a table's catalogue schema and name, before rules."""
    if table.place is None and DISPLACED in table.stale:
        return table.schema, table.table.replace("@", "_")  # many catalogues take no @
    return table.target


def free_place(tables: Mapping[str, TableState], name: Name, oid: int) -> Name | None:
    """Return a new table's stored name, None for its own.

    A renamed table may still be stored under its old name, which no other table may use.
    """
    taken = {table.stored_at or (table.schema, table.table) for table in tables.values()}
    if name not in taken:
        return None
    schema, table = name
    spare = f"{table}@{oid}"
    while (schema, spare) in taken:
        spare += "'"
    return schema, spare
