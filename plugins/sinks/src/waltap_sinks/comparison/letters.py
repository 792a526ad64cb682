"""Dead letters as what a difference comes from: rows that the destination refused. Sans-IO."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from waltap.dead_letters.dead_letter import DeadLetter
from waltap.sink.verification import Row
from waltap_sinks.comparison.differences import TableDifferences

__all__ = ["with_letters"]


def with_letters(
    found: Sequence[TableDifferences], letters: Iterable[DeadLetter], sink: str
) -> list[TableDifferences]:
    """Return ``found`` with what letters of ``sink`` (its name among several, else "") say of it: those
    that were not delivered."""
    by_table: dict[str, list[DeadLetter]] = {}
    for letter in letters:
        if letter.sink == sink and letter.replayed_ms is None:
            for relation in () if letter.change is None else letter.change.relations:
                by_table.setdefault(relation.name, []).append(letter)
    return [
        each if each.equal else _explained(each, by_table.get(each.table, [])) for each in found
    ]


def _explained(found: TableDifferences, letters: Sequence[DeadLetter]) -> TableDifferences:
    keys = {key for letter in letters for key in _keys(letter, found.table, found.key)}
    return replace(found, letters=len(letters), refused=len(found.keys & keys))


def _keys(letter: DeadLetter, table: str, key: Sequence[str]) -> Iterable[Row]:
    """Return the keys of the rows that a letter is about, old and new, as the server writes them."""
    form = letter.change
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
