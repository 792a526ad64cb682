"""Convert a change or a row to JSON and back. Sans-IO.

The form holds the server's values and the table's definition at that time. A value is text, null,
or ``{"missing": …}``.
"""

import base64
from typing import Any

import msgspec

from waltap.changes.decode.message import (
    Change,
    Delete,
    Insert,
    LogicalMessage,
    OldTuple,
    Truncate,
    Update,
)
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import MissingValue, Tuple
from waltap.changes.transactions.transaction import SnapshotRows, TransactionPart

Form = dict[str, Any] | str | None


class ChangeForm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change as JSON, with the fields of the message."""

    # insert, update, delete, truncate, message or row
    kind: str
    # tables as the server described them; a TRUNCATE can have several
    relations: list[Relation] = []
    lsn: int = 0
    new: list[Form] = []
    old: list[Form] = []
    old_kind: str = OldTuple.NONE.value
    cascade: bool = False
    restart_identity: bool = False
    prefix: str = ""
    # base64, because a message may hold any bytes
    content: str = ""
    # of a row: the time of its snapshot
    commit_ts: int = 0
    # of a row: the kind of its snapshot
    snapshot: str = ""


def change_form(change: Change, part: TransactionPart) -> ChangeForm:
    """Return the form of a change."""
    common: dict[str, Any] = {"lsn": change.lsn, "commit_ts": part.commit_ts}
    if isinstance(change, Truncate):
        return ChangeForm(
            kind="truncate",
            relations=list(change.relations),
            cascade=change.cascade,
            restart_identity=change.restart_identity,
            **common,
        )
    if isinstance(change, LogicalMessage):
        content = base64.b64encode(change.content).decode()
        return ChangeForm(kind="message", prefix=change.prefix, content=content, **common)
    common["relations"] = [change.relation]
    if not isinstance(change, Delete):
        common["new"] = _written(change.new)
    if not isinstance(change, Insert):
        common |= {"old": _written(change.old), "old_kind": change.old_kind.value}
    return ChangeForm(kind=type(change).__name__.lower(), **common)


def row_form(rows: SnapshotRows, at: int) -> ChangeForm:
    """Return the form of one snapshot row."""
    return ChangeForm(
        kind="row",
        relations=[rows.relation],
        lsn=rows.lsn or 0,
        new=_written(rows.rows[at]),
        commit_ts=rows.ts,
        snapshot=rows.kind,
    )


def of_form(form: ChangeForm) -> Change:
    """Return the change of a form, an INSERT for a snapshot row."""
    old_kind = OldTuple(form.old_kind)
    if form.kind in {"insert", "row"}:
        return Insert(form.relations[0], form.lsn, _read(form.new))
    if form.kind == "update":
        return Update(form.relations[0], form.lsn, _read(form.new), _read(form.old), old_kind)
    if form.kind == "delete":
        return Delete(form.relations[0], form.lsn, _read(form.old), old_kind)
    if form.kind == "truncate":
        return Truncate(tuple(form.relations), form.lsn, form.cascade, form.restart_identity)
    return LogicalMessage(form.lsn, True, form.prefix, base64.b64decode(form.content))


def operation(form: ChangeForm) -> str:
    """Return Debezium's code for the operation."""
    codes = {"insert": "c", "update": "u", "delete": "d", "truncate": "t", "message": "m"}
    return codes.get(form.kind, "r")


def table_of(form: ChangeForm) -> str:
    """Return the names of the tables, "" for a message."""
    return ", ".join(relation.name for relation in form.relations)


def _written(row: Tuple) -> list[Form]:
    return [{"missing": v.name} if isinstance(v, MissingValue) else v for v in row]


def _read(row: list[Form]) -> Tuple:
    return tuple(MissingValue[v["missing"]] if isinstance(v, dict) else v for v in row)
