"""Changes of a table folded by key: applied to a target, they leave what the changes would one by one."""

from operator import itemgetter
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from waltap.decode.tuple_image import UNCHANGED
from waltap_sinks.sql.fold import Fold

Rows = dict[Any, tuple[Any, ...]]
KEYS = st.integers(1, 3)


@st.composite
def courses(draw: st.DrawFn) -> tuple[Rows, list[tuple[Any, ...]]]:
    """Rows of a target, and changes that its source can have made of them."""
    start: Rows = {key: (key, f"old{key}") for key in draw(st.sets(KEYS))}
    rows, changes = dict(start), []
    for number in range(draw(st.integers(1, 12))):
        there, free = sorted(rows), sorted({1, 2, 3} - rows.keys())
        kind = draw(st.sampled_from([*(["put", "delete", "move"] if there else []), "insert"]))
        if kind == "insert" and free:
            row = (draw(st.sampled_from(free)), f"new{number}")
            changes.append(("insert", row))
            rows[row[0]] = row
        elif kind == "delete" and there:
            key = draw(st.sampled_from(there))
            changes.append(("delete", key))
            del rows[key]
        elif there and (kind == "put" or free):
            key = draw(st.sampled_from(there))
            to = key if kind == "put" else draw(st.sampled_from(free))
            unsent = draw(st.booleans())
            value = rows[key][1] if unsent else f"put{number}"
            changes.append((kind, key, (to, UNCHANGED if unsent else value)))
            del rows[key]
            rows[to] = (to, value)
    return start, changes


def apply(fold: Fold, target: Rows) -> None:
    """Write what was folded, in the order that `Fold` states."""
    for key in fold.gone:
        target.pop(key, None)
    for key, row in fold.puts.items():
        before = target.get(key)
        assert before is not None or UNCHANGED not in row, "nobody has the value that was not sent"
        target[key] = tuple(
            old if new is UNCHANGED else new for new, old in zip(row, before or row, strict=True)
        )
    for key, row in fold.fresh.items():
        assert key not in target, "a row that is new is there already"
        assert UNCHANGED not in row
        target[key] = row
    fold.clear()


@settings(max_examples=500)
@given(courses())
def test_folded_changes_leave_the_rows_of_the_source(
    course: tuple[Rows, list[tuple[Any, ...]]],
) -> None:
    start, changes = course
    fold: Fold = Fold(SimpleNamespace(key_of=itemgetter(0)))  # type: ignore[arg-type]
    target, source = dict(start), dict(start)
    for change in changes:
        if change[0] == "insert":
            source[change[1][0]] = change[1]
            fold.insert([change[1]])
        elif change[0] == "delete":
            del source[change[1]]
            fold.delete(change[1], 1)
        else:
            _, key, row = change
            before = source.pop(key)
            source[row[0]] = (row[0], before[1] if row[1] is UNCHANGED else row[1])
            if change[0] == "put":
                fold.put(row)
            elif not fold.move(key, row, 1):  # the target has the value: it moves the row itself
                apply(fold, target)
                target[row[0]] = (row[0], target.pop(key)[1])
    apply(fold, target)
    assert target == source
