"""The versions of a table's rows, from its change log, by plain Python that shares nothing with Spark.

The log is replayed row by row. Under one key there may be two rows while a transaction lasts; of those
a delete is of the one that was there before. A version is what a row is after a transaction, for as long as it
stays so.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from waltap_sinks.changelog import ChangeLog
from waltap_spark.state.modes import EXTRA

Row = dict[str, Any]
Key = tuple[Any, ...]
At = tuple[int, int]
"""Epoch, LSN of the commit."""
Version = tuple[tuple[str | None, ...], At, At | None]
"""Values, from, to; None while it stands."""


def transactions(
    log: ChangeLog, name: str, called: Mapping[str, str]
) -> Iterator[tuple[At, list[Row]]]:
    """Yield the position and the rows of each transaction; ``called``: old names of columns → new ones."""
    schema, _, table = name.partition(".")
    rows = [
        {called.get(column, column): value for column, value in row.items()}
        for part in log.rows(schema, table)
        for row in part.to_pylist()
    ]
    rows.sort(key=lambda row: (row["_epoch"], row["_commit_lsn"], row["_seq"], row["_sub"]))
    first: dict[Any, int] = {}
    for row in rows:  # a transaction that comes again is the one that was there
        reported = (row["_commit_lsn"], row["_xid"], row["_commit_ts"], row["_generation"])
        row["_again"] = first.setdefault(reported, row["_epoch"]) < row["_epoch"]
    rows = [row for row in rows if not row.pop("_again")]
    for at, some in itertools.groupby(rows, lambda row: (row["_epoch"], row["_commit_lsn"])):
        yield at, list(some)


def states(
    log: ChangeLog,
    name: str,
    key: Sequence[str],
    *,
    called: Mapping[str, str] | None = None,
    forgets: bool = True,
) -> Iterator[tuple[At, dict[Key, Row], Any]]:
    """Yield, after each transaction, its position, the row under each key, and its time.

    ``forgets``: deletes and truncates take rows away; otherwise only a change of the key does. A row has what
    the log says of the last change of it (`EXTRA`), too.
    """
    held: dict[Key, list[Row]] = {}
    kept: dict[Key, Row] = {}
    for at, rows in transactions(log, name, called or {}):
        moving: Row = {}
        moves = {row["_seq"] for row in rows if row["_sub"] == 1}
        if any(row["_generation"] is not None for row in rows):  # a snapshot has all there is
            kept |= {where: some[-1] for where, some in held.items()}
            held = {}
        for row in rows:
            where = tuple(row[part] for part in key)
            there = held.setdefault(where, [])
            if row["_op"] == "t":
                kept |= {place: some[-1] for place, some in held.items() if some}
                held = {}
            elif row["_op"] == "d":
                moving = there.pop(0) if there else moving
                if row["_seq"] not in moves:
                    kept[where] = moving
            else:
                before = moving if row["_sub"] == 1 else (there[-1] if there else {})
                values = {n: v for n, v in row.items() if n in EXTRA or not n.startswith("_")}
                unsent = [(called or {}).get(n, n) for n in row["_unchanged"] or ()]
                values |= {n: before.get(n) for n in unsent}
                if row["_op"] != "c":
                    del there[-1:]
                there.append(values)
        held = {where: some[-1:] for where, some in held.items() if some}
        kept = {} if forgets else {where: row for where, row in kept.items() if where not in held}
        yield at, kept | {where: some[0] for where, some in held.items()}, rows[-1]["_commit_ts"]


def versions(
    log: ChangeLog,
    name: str,
    key: Sequence[str],
    columns: Sequence[str],
    called: Mapping[str, str] | None = None,
) -> list[Version]:
    """Return all versions of all rows, as texts of ``columns``."""
    stands: dict[Key, tuple[tuple[str | None, ...], At]] = {}
    found: list[Version] = []
    for at, live, _time in states(log, name, key, called=called):
        now = {k: tuple(text(row.get(c)) for c in columns) for k, row in live.items()}
        for where in [k for k, (values, _since) in stands.items() if now.get(k) != values]:
            found.append((*stands.pop(where), at))
        for where, values in now.items():
            stands.setdefault(where, (values, at))
    found += [(values, since, None) for values, since in stands.values()]
    return sorted(found, key=str)


def ends(log: ChangeLog, name: str, key: Sequence[str]) -> dict[tuple[Key, At], Row]:
    """Return what the log has of the end of each row that went: its delete, or the truncate; or, for one that a
    snapshot lacks, a row of that, before whose rows (-1) it ended."""
    found: dict[tuple[Key, At], Row] = {}
    before: dict[Key, Row] = {}
    logged = transactions(log, name, {})
    for (at, rows), (_at, live, _time) in zip(logged, states(log, name, key), strict=True):
        for where in before.keys() - live.keys():
            own = [r for r in rows if r["_op"] == "d" and tuple(r[k] for k in key) == where]
            all_of_it = [r for r in rows if r["_op"] == "t"]
            all_of_it = all_of_it or [rows[0] | {"_seq": -2}]
            found[where, at] = max(own or all_of_it, key=lambda row: (row["_seq"], row["_sub"]))
        before = live
    return found


def text(value: Any) -> str | None:
    return None if value is None else str(value)
