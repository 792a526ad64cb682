"""What a table keeps of its source: its history, its present rows, or every version of each row.

A mode is chosen when a table is made, and stays. It decides which columns the rows of the table have
beside the source's own, and what identifies one of them. Formats store what it says; how rows come about
is `waltap_spark.timeline`'s. Knows no Spark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, cast, get_args

import msgspec

from waltap.changes.capture.java_regex import java_pattern

__all__ = [
    "DELETED",
    "DELETES",
    "EXTRA",
    "HISTORIES",
    "NAMES",
    "PLAIN",
    "VERSION",
    "ModeRules",
    "ModedTable",
    "TableMode",
    "checked_rules",
    "of_rules",
    "row_columns",
    "row_key",
    "said",
    "unfit",
]

Name = Literal["append", "scd1", "scd2"]
Deletes = Literal["hard", "soft", "kept"]

VERSION: Final = {
    "_valid_from": '"timestamp"',
    "_valid_to": '"timestamp"',
    "_from_epoch": '"integer"',
    "_from_lsn": '"long"',
    "_to_epoch": '"integer"',
    "_to_lsn": '"long"',
    "_current": '"boolean"',
}
"""Columns of a version of a row: from when it was what it is, and to when, by time and by position."""

DELETED: Final = {"_deleted": '"boolean"', "_deleted_at": '"timestamp"'}

EXTRA: Final = {
    "_op": '"string"',
    "_commit_lsn": '"long"',
    "_seq": '"integer"',
    "_lsn": '"long"',
    "_commit_ts": '"timestamp"',
    "_xid": '"long"',
    "_epoch": '"integer"',
}
"""Columns of the change log that rows may have, of the change that made them what they are."""


class TableMode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one table is kept.

    ``name``: ``append``, its history alone; ``scd1``, the rows as they are; ``scd2``, all versions of
    each row. ``deletes``: a deleted row goes (``hard``; in scd2 its version ends), stays with a flag
    (``soft``), or stays as it was (``kept``). ``extra``: columns of `EXTRA` besides. ``history``: the
    changes themselves are kept, too.
    """

    name: Name = "scd1"
    deletes: Deletes = "hard"
    extra: tuple[str, ...] = ()
    history: bool = True

    @property
    def keeps_past(self) -> bool:
        """Tell whether rows of the table outlive their row in the source."""
        return self.name == "scd2" or (self.name == "scd1" and self.deletes != "hard")

    @property
    def adds_alone(self) -> bool:
        """Tell whether a row that is inserted meets none of its key."""
        if self.deletes == "soft":
            return self.name != "scd1"  # a version that was deleted is closed
        return self.deletes == "hard" or self.name == "append"

    @property
    def columns(self) -> dict[str, str]:
        """Return the columns (name → Spark's type in JSON) that rows have beside the source's."""
        found = dict(VERSION) if self.name == "scd2" else {}
        if self.name != "append" and self.deletes == "soft":
            found |= DELETED
        return {**found, **{name: EXTRA[name] for name in self.extra}}

    @property
    def standing(self) -> str:
        """Return the condition, in SQL, of rows that are there in the source; "" where all are."""
        if self.name == "scd2":
            return "_current"
        return "not _deleted" if self.deletes == "soft" and self.name == "scd1" else ""


PLAIN: Final = TableMode()
"""What a table has that nothing was said of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeRules:
    """What a profile says: PATTERN:VALUE, first match wins; a VALUE alone is that of all others.

    Patterns are Java's, and match ``schema.table`` as a whole.
    """

    modes: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    history: tuple[str, ...] = ()

    def of(self, table: str) -> TableMode:
        """Return how ``table`` (``schema.table``) is kept."""
        name = cast(Name, of_rules(self.modes, table, "scd1"))
        if name == "append":
            return TableMode(name=name)
        deletes = cast(Deletes, of_rules(self.deletes, table, "hard"))
        history = of_rules(self.history, table, "keep") == "keep"
        return TableMode(name=name, deletes=deletes, extra=self.extra, history=history)


def of_rules(rules: Sequence[str], table: str, default: str) -> str:
    """Return what ``rules`` (PATTERN:VALUE, or VALUE alone) say of ``table``."""
    for rule in rules:
        pattern, colon, value = rule.rpartition(":")
        if colon and java_pattern(pattern).fullmatch(table):
            return value.strip()
    return next((rule.strip() for rule in rules if ":" not in rule), default)


def checked_rules(rules: Sequence[str], values: Sequence[str]) -> None:
    """Raises: ValueError, when a rule is not PATTERN:VALUE, or VALUE, with one of ``values``."""
    alone = [rule for rule in rules if ":" not in rule]
    if len(alone) > 1:
        raise ValueError(f"{' and '.join(alone)} are both for all tables")
    for rule in rules:
        pattern, colon, value = rule.rpartition(":")
        if value.strip() not in values:
            wanted = ", ".join(values)
            raise ValueError(f"{rule!r} is neither TABLE-REGEX:VALUE nor VALUE, with {wanted}")
        if colon:
            java_pattern(pattern)


NAMES: Final[tuple[str, ...]] = get_args(Name)
DELETES: Final[tuple[str, ...]] = get_args(Deletes)
HISTORIES: Final = ("keep", "none")


class ModedTable(Protocol):
    """A table, as far as its mode asks."""

    @property
    def columns(self) -> Mapping[str, str]: ...
    @property
    def key(self) -> tuple[str, ...]: ...
    @property
    def mode(self) -> TableMode: ...


def row_columns(table: ModedTable) -> dict[str, str]:
    """Return the columns that rows of ``table`` have: the source's, then those of its mode."""
    return {**table.columns, **table.mode.columns}


def row_key(table: ModedTable) -> tuple[str, ...]:
    """Return the columns that identify a row of ``table``."""
    if table.mode.name == "scd2":
        return (*table.key, "_from_epoch", "_from_lsn")
    return table.key


def unfit(mode: TableMode, key: Sequence[str], columns: Mapping[str, str]) -> str:
    """Return why a table with ``key`` and ``columns`` cannot be kept so, "" when it can."""
    if (mode.keeps_past or mode.extra) and not key:
        return f"it has no key, and {said(mode)} is by key"
    if not mode.history and (mode.keeps_past or not key):
        # what is delivered twice ends right in rows that a key identifies, and in no others
        why = "it keeps rows of the past" if mode.keeps_past else "it has no key"
        return f"{why}, and its history tells changes that come again"
    clash = [name for name in columns if name.lower() in mode.columns]
    return f"its column {clash[0]} is called as one of {said(mode)}" if clash else ""


def said(mode: TableMode) -> str:
    """Return the mode for people."""
    text = mode.name if mode.deletes == "hard" else f"{mode.name}, deletes {mode.deletes}"
    text = f"{text}, with {', '.join(mode.extra)}" if mode.extra else text
    return text if mode.history else f"{text}, without history"
