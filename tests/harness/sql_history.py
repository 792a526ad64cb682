"""Histories of the SQL sink as a plain model has them, which only appends, and as a target has them."""

from typing import Any

from tests.harness.sql import Place, micros

from waltap.changes.decode.message import Delete, Insert, Truncate, Update
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import UNCHANGED, Tuple
from waltap.changes.transactions.transaction import TransactionPart

OWN = ("op", "commit_lsn", "seq", "sub", "commit_ts", "xid", "valid_from", "valid_to", "is_current")

Known = dict[Any, Any]


class Annals:
    """The plain model: a list of versions, and of each row the one that is open."""

    def __init__(self) -> None:
        self.versions: dict[str, list[Known]] = {}
        self._open: dict[str, list[Known]] = {}

    def take(self, part: TransactionPart) -> None:
        """Go through the changes of a transaction, one by one."""
        for number, change in enumerate(part.changes):
            if isinstance(change, Truncate):
                for table in change.relations:
                    for version in list(self._open.get(table.name, ())):
                        self._end(table, version, part.commit_ts)
                    self._add(table, (None,) * len(table.columns), "t", part, number, opens=False)
                continue
            assert isinstance(change, Insert | Update | Delete)
            table, own = change.relation, _own(change.relation)
            if isinstance(change, Insert):
                self._add(table, change.new, "c", part, number)
                continue
            old = change.old if isinstance(change, Delete) or change.old else change.new
            version = self._find(table, [old[n] for n in own], own)
            self._end(table, version, part.commit_ts)
            if isinstance(change, Delete):
                seen = [old[n] if n in own else None for n in range(len(old))]
                self._add(table, seen, "d", part, number, opens=False)
                continue
            row = [
                v if n is UNCHANGED else n for n, v in zip(change.new, version["row"], strict=True)
            ]
            moved = bool(table.primary_key) and any(old[n] != row[n] for n in own)
            if moved:
                seen = [old[n] if n in own else None for n in range(len(old))]
                self._add(table, seen, "d", part, number, opens=False)
            self._add(table, row, "c" if moved else "u", part, number, sub=int(moved))

    def read(self, table: Relation, rows: list[Tuple], ts: int, lsn: int) -> None:
        """A snapshot: every version ends, and each row begins one."""
        for version in list(self._open.get(table.name, ())):
            self._end(table, version, ts)
        for row in rows:
            made = {
                "row": tuple(row), "op": "r", "commit_lsn": lsn, "seq": -1, "sub": 0, "commit_ts": None,
                "xid": None, "valid_from": ts, "valid_to": None, "is_current": True,
            }  # fmt: skip
            self.versions.setdefault(table.name, []).append(made)
            self._open.setdefault(table.name, []).append(made)

    def _add(
        self,
        table: Relation,
        row: Any,
        op: str,
        part: TransactionPart,
        number: int,
        *,
        sub: int = 0,
        opens: bool = True,
    ) -> None:
        ts = part.commit_ts
        made = {
            "row": tuple(row), "op": op, "commit_lsn": part.commit_lsn, "seq": number, "sub": sub,
            "commit_ts": ts, "xid": part.xid, "valid_from": ts, "valid_to": None if opens else ts,
            "is_current": opens,
        }  # fmt: skip
        self.versions.setdefault(table.name, []).append(made)
        if opens:
            self._open.setdefault(table.name, []).append(made)

    def _find(self, table: Relation, values: list[Any], own: list[int]) -> Known:
        return next(v for v in self._open[table.name] if [v["row"][n] for n in own] == values)

    def _end(self, table: Relation, version: Known, ts: int) -> None:
        version["valid_to"], version["is_current"] = ts, False
        self._open[table.name].remove(version)

    def reported(self, table: Relation) -> list[tuple[Any, ...]]:
        """Return the versions as `reported` reads them."""
        found = self.versions.get(table.name, [])
        return sorted((*v["row"], *(v[name] for name in OWN)) for v in map(_texts, found))


def _own(table: Relation) -> list[int]:
    names = [column.name for column in table.columns]
    return [names.index(name) for name in table.primary_key or ()] or list(range(len(names)))


def _texts(version: Known) -> Known:
    def text(value: Any) -> str:
        return "-" if value is None else str(value)

    return {n: tuple(map(text, v)) if n == "row" else text(v) for n, v in version.items()}


def reported(place: Place, table: Relation, suffix: str = "_history") -> list[tuple[Any, ...]]:
    """Return the history that the target has of ``table``, times as µs, sorted."""
    columns = [column.name for column in table.columns]
    names = ", ".join(
        [f"CAST({name} AS {place.text})" for name in columns] + [f"_{n}" for n in OWN]
    )
    rows = place.execute(f"SELECT {names} FROM {table.table}{suffix}")
    found = []
    for row in rows:
        values = dict(zip((*columns, *OWN), row, strict=True))
        for name in ("commit_ts", "valid_from", "valid_to"):
            values[name] = micros(values[name])
        values["is_current"] = bool(values["is_current"])
        found.append(tuple("-" if v is None else str(v) for v in values.values()))
    return sorted(found)
