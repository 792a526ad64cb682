"""What is different between two versions of a relation, in words. Sans-IO."""

from waltap.decode.relation import Column, Relation

__all__ = ["difference"]


def difference(old: Relation, new: Relation) -> list[str]:
    """Return a line for each difference that people care about, at least one. Columns are known by their
    numbers where the catalogue told them, else by name."""
    found = []
    if old.oid != new.oid:
        found.append("is another table")
    if old.name != new.name:
        found.append(f"was {old.name}")
    before = {_place(column): column for column in old.columns}
    after = {_place(column): column for column in new.columns}
    found += [f"{c.name}: added ({_type(c)})" for p, c in after.items() if p not in before]
    found += [f"{c.name}: dropped" for p, c in before.items() if p not in after]
    for place, column in after.items():
        if place in before:
            found += _of_column(before[place], column)
    before_key, key = old.primary_key, new.primary_key
    if before_key is not None and key is not None and before_key != key:
        found.append(f"key: {_names(before_key)} → {_names(key)}")
    if old.identity != new.identity:
        found.append(f"replica identity: {old.identity} → {new.identity}")
    return found or ["described anew"]


def _of_column(old: Column, new: Column) -> list[str]:
    found = []
    if old.name != new.name:
        found.append(f"{old.name}: renamed to {new.name}")
    if (old.type_oid, old.typmod) != (new.type_oid, new.typmod):
        before, after = _type(old), _type(new)
        text = (
            f"{before} → {after}" if before != after else f"{after} of another length or precision"
        )
        found.append(f"{new.name}: {text}")
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
