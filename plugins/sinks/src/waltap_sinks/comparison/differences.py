"""Describe the differences of one table, print and explain them."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from waltap.base.files.durable_file import private, private_folder
from waltap.base.text import printable
from waltap.ports.offsets.state_folder import DIFFERENCES
from waltap.ports.sink.verification import Row
from waltap.services.dead_letters.dead_letter import DeadLetter

if TYPE_CHECKING:
    from rich.table import Table

    from waltap.config.profile import Profile


# Most keys that are shown for each kind of difference.
KEYS_SHOWN: Final = 3

# Most characters of a value that are shown.
TEXT_SHOWN: Final = 40


Verdict = Literal["equal", "different", "late", "not_compared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDifferences:
    """Describe one table on both sides."""

    table: str
    source_rows: int = 0
    target_rows: int = 0
    source_hash: str = ""
    target_hash: str = ""
    # Columns that the target lacks, or that have no text to compare.
    left_out: tuple[str, ...] = ()
    # For a table with a key: some different columns, and examples of keys that are missing in the
    # target, only there, or changed.
    columns: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    # Both rows of some keys.
    rows: tuple[str, ...] = ()
    # The target did not reach the source's position in time.
    behind: bool = False
    # The columns of the key, and the keys of all different rows.
    key: tuple[str, ...] = ()
    keys: frozenset[tuple[str | None, ...]] = field(default=frozenset(), repr=False)
    # Waiting dead letters of the table, and the number of different rows that they are about.
    dead_letters: int = 0
    refused: int = 0
    # Why the sides need not be equal, so that they were not compared.
    not_compared: str = ""
    # Why the target will not reach the position, by its own account.
    lag_reason: str = ""
    # The target has no such table.
    absent: bool = False
    # All keys that only the target has, with the statements that delete their rows.
    surplus_keys: frozenset[tuple[str | None, ...]] = field(default=frozenset(), repr=False)
    removal: tuple[str, ...] = field(default=(), repr=False)

    @property
    def verdict(self) -> "Verdict":
        """Return the verdict.

        A late target may still get the missing rows, so a difference means nothing. It will not get
        rows that it refused.
        """
        if self.not_compared:
            return "not_compared"
        if self.equal:
            return "equal"
        return "late" if (self.lag_reason or self.behind) and not self.dead_letters else "different"

    @property
    def equal(self) -> bool:
        return (self.source_rows, self.source_hash) == (self.target_rows, self.target_hash)


def keys_shown(names: Sequence[str], keys: "Iterable[tuple[str | None, ...]]") -> tuple[str, ...]:
    """Return some of ``keys`` for people, with column names."""
    return tuple(key_shown(names, each) for each in sorted(keys, key=str)[:KEYS_SHOWN])


def key_shown(names: Sequence[str], key: "tuple[str | None, ...]") -> str:
    """Return ``key`` for people, with column names."""
    return "(" + ", ".join(f"{name}={part}" for name, part in zip(names, key, strict=True)) + ")"


def rows_shown(
    names: Sequence[str],
    key: Sequence[str],
    keys: "Iterable[tuple[str | None, ...]]",
    here: "Mapping[tuple[str | None, ...], tuple[str | None, ...]]",
    there: "Mapping[tuple[str | None, ...], tuple[str | None, ...]]",
) -> tuple[str, ...]:
    """Return both rows of some keys for people, source first."""
    lines = []
    for each in sorted(keys, key=str)[:KEYS_SHOWN]:
        where = key_shown(key, each)
        ours, theirs = here.get(each), there.get(each)
        parts = []
        for n, name in enumerate(names):
            left_value = "no row" if ours is None else _value(ours[n])
            right_value = "no row" if theirs is None else _value(theirs[n])
            if name not in key and left_value != right_value:
                parts.append(f"{name}: {left_value} | {right_value}")
        many = [0 if row is None else len(row) // len(names) for row in (ours, theirs)]
        if max(many) > 1:
            parts.append(f"{many[0]} | {many[1]} rows have this key")
        lines.append(f"{where} {'; '.join(parts)}")
    return tuple(lines)


def _value(text: str | None) -> str:
    if text is None:
        return "NULL"
    return repr(text if len(text) <= TEXT_SHOWN else f"{text[:TEXT_SHOWN]}…")


def _of_dead_letters(found: TableDifferences) -> str:
    if not found.keys:
        return f"{found.dead_letters} dead letters of this table were not delivered"
    return (
        f"{found.refused} of {len(found.keys)} rows that differ were refused: they are dead letters"
    )


def comparison_table(found: Sequence[TableDifferences], target: str) -> "Table":
    """Return the comparison as a table for a terminal."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"source and {target}, row by row")
    table.add_column("table")
    for title in ("rows in the source", f"rows in {target}"):
        table.add_column(title, justify="right")
    for title in ("hash of the source", f"hash of {target}", ""):
        table.add_column(title)
    for each in found:
        name = escape(each.table)
        verdict = "[green]equal[/]" if each.equal else "[bold red]DIFFERENT[/]"
        for text, names in (
            ("in", each.columns),
            (f"not in {target}:", each.missing),
            (f"only in {target}:", each.surplus),
            ("changed:", each.changed),
        ):
            if names:
                verdict += f"\n{text} {escape(', '.join(names))}"
        for row in each.rows:
            verdict += f"\n[dim]{escape(row)}[/]"
        if each.absent and not each.equal:
            verdict += f"\nrows of the source are not in {target}: it has no such table"
        if each.left_out:
            verdict += f" [yellow](without {escape(', '.join(each.left_out))})[/]"
        if each.dead_letters:
            verdict += f"\n[yellow]{_of_dead_letters(each)}[/]"
        if each.verdict == "late":
            why = f"{target} did not get to where the source was in time: does the pipeline run?"
            verdict = f"[yellow]late, not compared: {escape(each.lag_reason or why)}[/]"
        if each.verdict == "not_compared":
            table.add_row(
                name, "", "", "", "", f"[yellow]not compared: {escape(each.not_compared)}[/]"
            )
            continue
        table.add_row(
            name,
            f"{each.source_rows:,}",
            f"{each.target_rows:,}",
            each.source_hash,
            each.target_hash,
            verdict,
        )
    return table


NO_NAME: Final = re.compile(r"[^\w.-]")


def write_surplus(
    profile: "Profile", sink: str, found: Iterable[TableDifferences]
) -> Mapping[str, Path]:
    """Write each table's surplus rows into the state folder.

    It has the SQL that deletes them, if there is any. Return the files by table. Files of tables
    without surplus rows are removed. Raises: OSError.
    """
    folder = profile.state_dir / DIFFERENCES
    paths = {}
    for each in found:
        stem = NO_NAME.sub("_", f"{sink} {each.table}")
        if NO_NAME.search(each.table):  # another name may become this one, too
            stem += f"-{sha256(each.table.encode()).hexdigest()[:8]}"
        files = {True: folder / f"{stem}.sql", False: folder / f"{stem}.txt"}
        for path in files.values():
            path.unlink(missing_ok=True)
        if each.surplus_keys and each.verdict == "different":
            path = files[bool(each.removal)]
            private_folder(folder)
            with os.fdopen(private(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as file:
                file.writelines(f"{line}\n" for line in _lines(each))
            paths[each.table] = path
    return paths


def _lines(found: TableDifferences) -> Iterable[str]:
    if found.removal:
        yield f"-- {len(found.surplus_keys)} rows of {printable(found.table)}, no longer in the source"
        yield from found.removal
        return
    for key in sorted(found.surplus_keys, key=str):
        yield printable(key_shown(found.key, key))


def with_dead_letters(
    found: Sequence[TableDifferences], dead_letters: Iterable[DeadLetter], sink: str
) -> list[TableDifferences]:
    """Return ``found`` with the dead letters of ``sink`` that explain it.

    ``sink`` is its name among several, else empty.
    """
    by_table: dict[str, list[DeadLetter]] = {}
    for dead_letter in dead_letters:
        if dead_letter.sink == sink and dead_letter.redelivered_ms is None:
            for relation in () if dead_letter.change is None else dead_letter.change.relations:
                by_table.setdefault(relation.name, []).append(dead_letter)
    return [
        each if each.equal else _explained(each, by_table.get(each.table, [])) for each in found
    ]


def _explained(found: TableDifferences, dead_letters: Sequence[DeadLetter]) -> TableDifferences:
    keys = {
        key for dead_letter in dead_letters for key in _keys(dead_letter, found.table, found.key)
    }
    return replace(found, dead_letters=len(dead_letters), refused=len(found.keys & keys))


def _keys(dead_letter: DeadLetter, table: str, key: Sequence[str]) -> Iterable[Row]:
    """Return the old and new keys of a dead letter's rows."""
    form = dead_letter.change
    if form is None or not key:
        return
    for relation in form.relations:
        names = [column.name for column in relation.columns]
        if relation.name != table or not set(key) <= set(names):
            continue
        for row in (form.new, form.old):
            if len(row) == len(names):
                values = [row[names.index(name)] for name in key]
                if all(isinstance(value, str) for value in values):
                    yield tuple(str(value) for value in values)
