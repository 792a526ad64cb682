"""The rows that a consumer of the events has, and how they differ from a table's. Pure."""

from collections.abc import Callable, Iterable
from typing import Any

from tests.hunt.delivered import Event
from tests.hunt.oracle import UNSENT, Table
from tests.hunt.values import canonical, is_placeholder


class Rows:
    """The rows of one table as a consumer has them, as they came. ``unknown``: they cannot be known."""

    def __init__(self, name: str, table_of: Callable[[str], Table | None]) -> None:
        self.name, self._table_of = name, table_of
        self.rows: list[dict[str, Any]] = []
        self.unknown = False
        self.ahead = 0
        """The item up to which the table's changes are in the rows that a snapshot read."""
        self._lifted: dict[str, Any] | None = None

    def fill(self, table: Table) -> None:
        self.rows = [dict(row) for row in table.rows]

    def put(self, event: Event, half: str = "") -> None:
        table = self._table_of(self.name)
        columns = table.columns if table is not None else {}
        generated = table.generated if table is not None else frozenset()
        key = tuple(event.key) if event.key else (table.key if table is not None else ())
        if event.snapshot == "initial" and not event.key:
            key = ()  # the table that has the name may be another one by now
        if event.op == "t":
            self.rows.clear()
            return
        before = event.before
        if event.op == "d":
            taken = self._take(before or {}, key, columns, generated)
            if half == "d":
                self._lifted = taken
            return
        assert event.after is not None
        after = dict(event.after)
        for name, value in event.after.items():
            if is_placeholder(value) or name in event.unsent:
                after[name] = UNSENT
        held: dict[str, Any] = {}
        if event.op == "u" and not event.key and before is not None and table is not None:
            held = self._take(before, table.key or tuple(columns), columns, generated) or {}
        elif half == "c":  # one statement may move a row onto the key of a row that it moves later
            held, self._lifted = self._lifted or {}, None
        elif key:
            held = self._take(after, key, columns, generated) or {}
        self.rows.append({n: held.get(n, UNSENT) if v is UNSENT else v for n, v in after.items()})

    def _take(
        self,
        image: dict[str, Any],
        key: Iterable[str],
        types: dict[str, str],
        generated: frozenset[str],
    ) -> dict[str, Any] | None:
        def form(row: dict[str, Any]) -> list[Any]:
            return [canonical(types.get(n, ""), row.get(n)) for n in names]

        names = tuple(n for n in key or image if n not in generated)
        wanted = form(image)
        for index, row in enumerate(self.rows):
            if [row.get(n) for n in names] == [image.get(n) for n in names] or form(row) == wanted:
                return self.rows.pop(index)
        return None

    def follow(self, image: Table, before: Table, old_names: dict[str, str]) -> None:
        """Take the columns of a new definition, and what it gives to rows that are there.

        ``old_names`` is new → old column names. Rows are found by the key they had.
        """
        new_names = {old: new for new, old in old_names.items()}
        key = [new_names.get(n, n) for n in before.key]
        if not key or any(n not in image.columns for n in key):
            key = []
            self.unknown = self.unknown or bool(self.rows and image.columns != before.columns)
        fresh = {tuple(plain(row.get(n)) for n in key): row for row in image.rows}
        followed = []
        for row in self.rows:
            place = tuple(
                plain(canonical(image.columns[n], row.get(old_names.get(n, n)))) for n in key
            )
            known = (fresh.get(place) if key else None) or {}
            followed.append(
                {
                    n: known.get(n, row.get(n, row.get(old_names.get(n, n), UNSENT)))
                    for n in image.columns
                }
            )
        self.rows = followed


def canonical_row(row: dict[str, Any], columns: dict[str, str]) -> dict[str, Any]:
    return {name: canonical(columns.get(name, ""), value) for name, value in row.items()}


def plain(value: Any) -> Any:
    return repr(value) if isinstance(value, list) else value


def differences(
    name: str, rows: "Rows | None", table: Table, *, loosely: bool = False
) -> list[str]:
    """Return what shows a consumer's rows from a table's; ``loosely``: rows and keys alone."""
    if rows is not None and rows.unknown:
        return []
    have = rows.rows if rows is not None else []
    if not table.key or (loosely and have and any(n not in have[0] for n in table.key)):
        if len(have) != len(table.rows):
            return [f"{name} has {len(table.rows)} rows, {len(have)} were delivered"]
        return []
    reported = []
    have = [canonical_row(row, table.columns) for row in have]
    index = {tuple(plain(row.get(n)) for n in table.key): row for row in have}
    wanted = {tuple(plain(row.get(n)) for n in table.key): row for row in table.rows}
    missing, extra = wanted.keys() - index.keys(), index.keys() - wanted.keys()
    if missing:
        one = min(missing, key=repr)
        reported.append(f"{name}: {len(missing)} of {len(wanted)} rows are missing, one is {one}")
    if extra:
        reported.append(f"{name}: {len(extra)} rows are too many, one is {min(extra, key=repr)}")
    if loosely:
        return reported
    for key in wanted.keys() & index.keys():
        for column in table.columns:
            if column in table.generated:
                continue
            if column not in index[key]:
                reported.append(f"{name} {key}: column {column} is missing")
                continue
            got, value = index[key][column], wanted[key].get(column)
            if got is not UNSENT and value is not UNSENT and got != value:
                reported.append(
                    f"{name} {key}: {column} is {short(got)}, in the source {short(value)}"
                )
    return reported


def short(row: Any) -> str:
    text = repr(row)
    return text if len(text) < 160 else text[:157] + "…"
