"""What a comparison of source and target is made of: a text and a hash of each row, and what was found.

The hash of a table is the sum of a hash of each row, so that neither side has to sort. NULL is told apart
from every text by writing values with their length in front. Sans-IO.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "HASH_DIGITS",
    "KEYS_SHOWN",
    "Comparison",
    "comparison_table",
    "keys_shown",
    "row_text",
    "short_hash",
    "source_row_hash",
]

HASH_DIGITS: Final = 15
"""Hexadecimal digits of each row's MD5 that are summed up: 60 bits, positive in every database."""

KEYS_SHOWN: Final = 3
"""Most keys that are named of each kind of difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One table on both sides. ``left_out``: columns that have no common text to compare by.

    Where the sides differ and the table has a key, ``columns`` are some that do, and keys of rows
    are examples: ``missing`` in the target, ``surplus`` there, ``changed`` in a column.
    """

    table: str
    source_rows: int
    target_rows: int
    source_hash: str
    target_hash: str
    left_out: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Tell whether both sides hold the same rows."""
        return (self.source_rows, self.source_hash) == (self.target_rows, self.target_hash)


def source_row_hash(columns: Sequence[str]) -> str:
    """Return the sum of row hashes as PostgreSQL computes it, a numeric without fraction."""
    text = f"convert_to({row_text(columns)}, 'UTF8')"
    one = f"('x' || substr(md5({text}), 1, {HASH_DIGITS}))::bit({4 * HASH_DIGITS})::bigint"
    return f"coalesce(sum({one}), 0)::text"


def row_text(columns: Sequence[str]) -> str:
    """Return SQL, of either database, of one text for a row of ``columns`` (texts or NULLs)."""
    parts = [
        f"CASE WHEN ({text}) IS NULL THEN '-' ELSE concat(length({text}), ':', {text}) END"
        for text in columns
    ]
    return f"concat_ws(',', {', '.join(parts)})" if parts else "''"


def short_hash(total: str) -> str:
    """Return a sum of hashes as 16 hexadecimal digits."""
    return f"{int(total) % (1 << 64):016x}"


def keys_shown(names: Sequence[str], keys: "Iterable[tuple[str | None, ...]]") -> tuple[str, ...]:
    """Return some of ``keys`` for people, with the names of their columns."""
    some = sorted(keys, key=str)[:KEYS_SHOWN]
    return tuple(
        "(" + ", ".join(f"{name}={part}" for name, part in zip(names, each, strict=True)) + ")"
        for each in some
    )


def comparison_table(found: Sequence[Comparison], target: str) -> "Table":
    """Return the comparison with ``target`` for a terminal."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"source and {target}, row by row")
    table.add_column("table")
    for title in ("rows in the source", f"rows in {target}"):
        table.add_column(title, justify="right")
    for title in ("hash of the source", f"hash of {target}", ""):
        table.add_column(title)
    for each in found:
        verdict = "[green]equal[/]" if each.equal else "[bold red]DIFFERENT[/]"
        for text, names in (
            ("in", each.columns),
            (f"not in {target}:", each.missing),
            (f"only in {target}:", each.surplus),
            ("changed:", each.changed),
        ):
            if names:
                verdict += f"\n{text} {escape(', '.join(names))}"
        if each.left_out:
            verdict += f" [yellow](without {', '.join(each.left_out)})[/]"
        table.add_row(
            each.table,
            f"{each.source_rows:,}",
            f"{each.target_rows:,}",
            each.source_hash,
            each.target_hash,
            verdict,
        )
    return table
