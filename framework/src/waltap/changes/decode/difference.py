"""Describe the difference between two versions of a relation. Sans-IO."""

from waltap.changes.decode.relation import Column, Relation

__all__ = ["difference"]


def difference(old: Relation, new: Relation) -> list[str]:
    """Return one line for each difference that a user notices.

    The list has at least one line.
    """
    found = []
    if old.oid != new.oid:
        found.append("is another table")
    if old.name != new.name:
        found.append(f"was {old.name}")
    # A column's number survives a rename; its name identifies it only where the catalogue gave no
    # number.
    before = {_place(column): column for column in old.columns}
    after = {_place(column): column for column in new.columns}
    found += [f"{c.name}: added ({_type(c)})" for p, c in after.items() if p not in before]
    found += [f"{c.name}: dropped" for p, c in before.items() if p not in after]
    for place, column in after.items():
        if place in before:
            found += _of_column(before[place], column)
    before_key, key = old.primary_key, new.primary_key
    # None means that the catalogue was not asked: that is no change of the key.
    if before_key is not None and key is not None and before_key != key:
        found.append(f"key: {_names(before_key)} → {_names(key)}")
    if old.identity != new.identity:
        found.append(f"replica identity: {old.identity} → {new.identity}")
    # The server also announces a relation again after a change that no user notices.
    return found or ["described anew"]


def _of_column(old: Column, new: Column) -> list[str]:
    found = []
    if old.name != new.name:
        found.append(f"{old.name}: renamed to {new.name}")
    if (old.type_oid, old.typmod) != (new.type_oid, new.typmod):
        before, after = _type(old), _type(new)
        text = (
            # Two modifiers can print alike, so the text names the difference itself.
            f"{before} → {after}" if before != after else f"{after} of another length or precision"
        )
        found.append(f"{new.name}: {text}")
    # None is not known, so it cannot differ.
    if old.nullable != new.nullable and None not in (old.nullable, new.nullable):
        found.append(f"{new.name}: {'NULL allowed' if new.nullable else 'NOT NULL'}")
    if old.default != new.default:
        found.append(f"{new.name}: default {old.default or 'none'} → {new.default or 'none'}")
    return found


def _place(column: Column) -> object:
    return column.name if column.number is None else column.number


def _type(column: Column) -> str:
    if column.type_text:
        return column.type_text
    return column.data_type.name if column.data_type else f"type {column.type_oid}"


def _names(key: tuple[str, ...]) -> str:
    return ", ".join(key) or "none"
