"""Modes of a table: history, present rows, or row versions.

A mode is chosen when a table is made, and never changes. It decides which columns the rows have
in addition to the source's columns, and which columns identify a row. Formats store the mode's
columns; `waltap_spark.compact.timeline` makes the rows. This module does not import Spark.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

import msgspec

from waltap.changes.capture.java_regex import java_pattern
from waltap_spark.errors import FormatError, MadeOtherwise, ModeUnfit

Name = Literal["append", "scd1", "scd2"]
Deletes = Literal["hard", "soft", "kept"]

# Columns of a row version: its first and last moment, by time and by position.
VERSION: Final = {
    "_valid_from": '"timestamp"',
    "_valid_to": '"timestamp"',
    "_from_epoch": '"integer"',
    "_from_lsn": '"long"',
    "_to_epoch": '"integer"',
    "_to_lsn": '"long"',
    "_current": '"boolean"',
}

DELETED: Final = {"_deleted": '"boolean"', "_deleted_at": '"timestamp"'}

# Columns of the change log that rows may have, from their last change.
EXTRA: Final = {
    "_op": '"string"',
    "_commit_lsn": '"long"',
    "_seq": '"integer"',
    "_lsn": '"long"',
    "_commit_ts": '"timestamp"',
    "_xid": '"long"',
    "_epoch": '"integer"',
}


class TableMode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The mode of one table."""

    # ``append`` keeps the history alone, ``scd1`` the present rows, ``scd2`` all versions of each
    # row.
    name: Name = "scd1"
    # A deleted row is removed (``hard``; in scd2 its version ends), stays with a flag (``soft``),
    # or stays unchanged (``kept``).
    deletes: Deletes = "hard"
    # Additional columns, of `EXTRA`.
    extra: tuple[str, ...] = ()
    # Whether the table also keeps the changes themselves.
    history: bool = True

    @property
    def keeps_past(self) -> bool:
        """Return whether rows stay after their deletion in the source."""
        return self.name == "scd2" or (self.name == "scd1" and self.deletes != "hard")

    @property
    def adds_alone(self) -> bool:
        """Return whether inserts never meet a row of their key."""
        if self.deletes == "soft":
            return self.name != "scd1"  # a deleted version is closed
        return self.deletes == "hard" or self.name == "append"

    @property
    def columns(self) -> dict[str, str]:
        """Return the mode's own columns: name → Spark's type in JSON."""
        found = dict(VERSION) if self.name == "scd2" else {}
        if self.name != "append" and self.deletes == "soft":
            found |= DELETED
        found.update((name, EXTRA[name]) for name in self.extra)
        return found

    @property
    def live_condition(self) -> str:
        """Return the SQL condition of rows that exist in the source.

        It is "" when all rows do.
        """
        if self.name == "scd2":
            return "_current"
        return "not _deleted" if self.deletes == "soft" and self.name == "scd1" else ""


# The mode of a table without a rule.
PLAIN: Final = TableMode()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeRules:
    """A profile's modes by table, as rules PATTERN:VALUE.

    The first match wins; a VALUE alone applies to all other tables. Patterns are Java's, and
    match ``schema.table`` as a whole.
    """

    modes: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    history: tuple[str, ...] = ()

    def of(self, table: str) -> TableMode:
        name = cast(Name, of_rules(self.modes, table, "scd1"))
        if name == "append":
            return TableMode(name=name)
        deletes = cast(Deletes, of_rules(self.deletes, table, "hard"))
        history = of_rules(self.history, table, "keep") == "keep"
        return TableMode(name=name, deletes=deletes, extra=self.extra, history=history)


def of_rules(rules: Sequence[str], table: str, default: str) -> str:
    """Return the value of the first rule for ``table``.

    A rule is PATTERN:VALUE; a VALUE alone is the default of all tables.
    """
    for rule in rules:
        pattern, colon, value = rule.rpartition(":")
        if colon and java_pattern(pattern).fullmatch(table):
            return value.strip()
    return next((rule.strip() for rule in rules if ":" not in rule), default)


def checked_rules(rules: Sequence[str], values: Sequence[str]) -> None:
    """Require rules PATTERN:VALUE or VALUE, with one of ``values``.

    Raises: ValueError.
    """
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


def unfit(mode: TableMode, key: Sequence[str], columns: Iterable[str]) -> str:
    """Return why a table cannot have ``mode``, "" when it can."""
    if (mode.keeps_past or mode.extra) and not key:
        return f"it has no key, and {describe_mode(mode)} is by key"
    if not mode.history and (mode.keeps_past or not key):
        # repeated changes end with the right rows only where a key identifies them
        why = "it keeps rows of the past" if mode.keeps_past else "it has no key"
        return f"{why}, and its history has repeated changes"
    own = mode.columns
    clash = [name for name in columns if name.lower() in own]
    return f"its column {clash[0]} is called as one of {describe_mode(mode)}" if clash else ""


def mode_errors(
    table: str,
    target: str,
    modes: tuple[TableMode | None, TableMode],
    key: Sequence[str] | None,
    columns: Iterable[str],
) -> Iterator[FormatError]:
    """Yield why ``table`` cannot have the second of ``modes``.

    The first one is the mode that it was made with, if it was. ``key``: None if unknown.
    """
    made, wanted = modes
    if made is not None and made != wanted:
        text = f"{describe_mode(made)}, and the profile asks for {describe_mode(wanted)}"
        yield MadeOtherwise(f"{table} was made as {text}", table=target)
    reason = "" if key is None else unfit(wanted, key, columns)
    if reason:
        yield ModeUnfit(f"{table} cannot be {describe_mode(wanted)}: {reason}", table=target)


def describe_mode(mode: TableMode) -> str:
    """Return the mode in words, for messages."""
    text = mode.name if mode.deletes == "hard" else f"{mode.name}, deletes {mode.deletes}"
    text = f"{text}, with {', '.join(mode.extra)}" if mode.extra else text
    return text if mode.history else f"{text}, without history"
