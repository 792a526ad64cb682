"""Write rows and check that the target accepted them."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from waltap.changes.decode.tuple_image import Tuple
from waltap.errors import SinkError
from waltap_sinks.sql.errors import SqlChangeIgnored
from waltap_sinks.sql.shape import TargetColumn, TargetName
from waltap_sinks.sql.targets.target import BoundTable, SqlTarget

# Characters of a key in a message: keys may be documents, and logs have one line per error.
LONGEST_KEY: Final = 200


class RowWriter:
    """Write rows in the open transaction and compare the counts.

    Every row that is put must be counted, and every existing key that is deleted. The target may
    have fewer rows than the source, so missing keys are looked up when a count is too small. Every
    method raises SqlChangeIgnored.
    """

    def __init__(self, target: SqlTarget) -> None:
        self._target = target

    def insert(self, table: BoundTable, rows: Sequence[Tuple]) -> None:
        if self._target.insert(table, rows) >= len(rows):
            return
        if not (table.shape.key and table.shape.unique):
            self.refuse(table, "INSERT")
        self.require(table, self._keys(table, rows), "INSERT", there=True)

    def upsert(self, table: BoundTable, rows: Sequence[Tuple], *, keep: bool = False) -> None:
        """Insert rows, or replace those with the same keys.

        With ``keep`` existing rows stay.
        """
        if self._target.upsert(table, rows, keep=keep) >= len(rows):
            return
        if keep or not table.settable:
            self.require(table, self._keys(table, rows), "INSERT", there=True)
        else:
            self._refuse_first(table, rows, lambda some: self._target.upsert(table, some))

    def update(
        self, table: BoundTable, columns: Sequence[TargetColumn], rows: Sequence[Tuple]
    ) -> None:
        """Set ``columns`` of rows by their keys.

        A missing row is inserted with the known values.
        """
        if self._target.update(table, columns, rows) < len(rows):
            self._refuse_first(table, rows, lambda some: self._target.update(table, columns, some))

    def move(self, table: BoundTable, old: Any, row: Tuple) -> None:
        """Give the row with key ``old`` the values of ``row``.

        The key is among them. A missing row is inserted with the known values.
        """
        shape = table.shape
        if not self._target.move(table, [values[0] for values in shape.keys([old])], row):
            self.require(table, [old], "UPDATE", there=False)
            self.update(table, shape.sent(row), [row])

    def delete(self, table: BoundTable, keys: Sequence[Any], due: int) -> None:
        """Delete the rows of ``keys``.

        At least ``due`` of them exist unless the target has fewer rows than the source.
        """
        if self._target.change_keys(table, keys) < due:
            self.require(table, keys, "DELETE", there=False)

    def mark_deleted(
        self, table: BoundTable, keys: Sequence[Any], times: Sequence[int], due: int
    ) -> None:
        """Set the column for soft deletes; ``due`` as for `delete`."""
        assert table.soft is not None
        if self._target.change_keys(table, keys, {table.soft: None}, times=times) < due:
            self.require(table, keys, "UPDATE", there=False, where=f"{table.soft} IS NULL")

    def delete_row(self, table: BoundTable, row: Tuple) -> None:
        if not self._target.change_row(table, table.shape, row):
            self.refuse(table, "DELETE")

    def delete_all(self, table: BoundTable) -> None:
        self._target.delete_all(table)
        self.require_none(table, "DELETE")

    def truncate(self, tables: Sequence[BoundTable], *, cascade: bool, restart: bool) -> None:
        self._target.truncate(tables, cascade=cascade, restart=restart)
        for table in tables:
            self.require_none(table, "DELETE")

    # --- what is looked at ------------------------------------------------------------------------

    def require_none(self, table: BoundTable, verb: str, where: str = "") -> None:
        """Check that no row meets the SQL ``where``."""
        condition = f" WHERE {where}" if where else ""
        if self._target.run(f"SELECT 1 FROM {table.quoted}{condition} LIMIT 1"):
            self.refuse(table, verb)

    def refuse(self, table: BoundTable, verb: str, keys: Sequence[Any] = ()) -> NoReturn:
        """Raise the error for an ignored statement; name a single key."""
        row = f"the row {self._key_text(table, keys[0])}" if len(keys) == 1 else "rows"
        name = table.shape.name
        found = [each for each in self._target.obstacles(name) if verb in each.verbs]
        reasons = ", ".join(each.problem for each in found)
        raise SqlChangeIgnored(
            f"{name} took the {verb} of {row}, and did nothing"
            + (f" ({reasons})" if reasons else ""),
            statement="; ".join(each.statement for each in found)
            or f"see which triggers and rules {name} has",
        )

    def _keys(self, table: BoundTable, rows: Sequence[Tuple]) -> list[Any]:
        return list(map(table.shape.key_of, rows))

    def require(
        self, table: BoundTable, keys: Sequence[Any], verb: str, *, there: bool, where: str = ""
    ) -> None:
        """Check that all rows of ``keys`` exist, or none.

        Only rows that meet the SQL ``where`` count.
        """

        def right(some: Sequence[Any]) -> bool:
            return self._target.holding(table, some, where) == (len(some) if there else 0)

        if not right(keys):
            self.refuse(table, verb, [_first(keys, right)])

    def _refuse_first(
        self, table: BoundTable, rows: Sequence[Tuple], write: Callable[[Sequence[Tuple]], int]
    ) -> NoReturn:
        """Raise the first ignored row's error, to undo all."""
        # Written again in halves: savepoints are not needed, as the caller undoes everything.
        row = _first(rows, lambda some: write(some) >= len(some))
        self.refuse(table, "UPDATE", self._keys(table, [row]))

    def _key_text(self, table: BoundTable, key: Any) -> str:
        shape = table.shape
        columns = zip(shape.key, shape.keys([key]), strict=True)
        text = ", ".join(f"{c.name}={shape.values(c, values)[0]!s}" for c, values in columns)
        return text if len(text) <= LONGEST_KEY else f"{text[:LONGEST_KEY]}…"


def certainly_ignored(target: SqlTarget, name: TargetName) -> SinkError | None:
    """Return the error for a table that surely ignores writes."""
    found = [each for each in target.obstacles(name) if each.certain]
    if not found:
        return None
    return SqlChangeIgnored(
        f"{name} does not do what is written: {', '.join(each.problem for each in found)}",
        statement="; ".join(each.statement for each in found),
    )


def _first(items: Sequence[Any], right: Callable[[Sequence[Any]], bool]) -> Any:
    """Return the first item that is not ``right``."""
    while len(items) > 1:
        half = len(items) // 2
        items = items[half:] if right(items[:half]) else items[:half]
    return items[0]
