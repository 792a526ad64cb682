"""The SQL sink without a server: folded changes, shapes of tables, and what comes again on SQLite."""

import sys
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.harness.changelog import Database as Model
from tests.harness.changelog import batch, context, copy_of
from tests.harness.sql import VISITS, file, model

from waltap.changes.decode.row_block import RowBlock
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED
from waltap.changes.transactions.position import Position
from waltap.errors import ConfigurationError
from waltap_sinks.sql.errors import SqlDriverMissing
from waltap_sinks.sql.net_changes import NetChanges
from waltap_sinks.sql.properties import SqlProperties
from waltap_sinks.sql.targets import target_of

Rows = dict[Any, tuple[Any, ...]]
KEYS = st.sampled_from("123")
SHAPE: Any = SimpleNamespace(key_of=itemgetter(0), key=[SimpleNamespace(index=0)])


@st.composite
def courses(draw: st.DrawFn) -> tuple[Rows, list[tuple[Any, ...]]]:
    """Rows of a target, and changes that its source can have made of them."""
    start: Rows = {key: (key, f"old{key}") for key in draw(st.sets(KEYS))}
    rows = dict(start)
    changes: list[tuple[Any, ...]] = []
    for number in range(draw(st.integers(1, 12))):
        there, free = sorted(rows), sorted({*"123"} - rows.keys())
        kind = draw(st.sampled_from([*(["put", "delete", "move"] if there else []), "insert"]))
        if kind == "insert" and free:
            row = (draw(st.sampled_from(free)), f"new{number}")
            changes.append(("insert", RowBlock.of([row]) if draw(st.booleans()) else [row]))
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


def apply(net: NetChanges, target: Rows) -> None:
    """Write what was folded, in the order that `NetChanges` states."""
    for key in net.gone:
        target.pop(key, None)
    for key, row in net.puts.items():
        before = target.get(key)
        assert before is not None or UNCHANGED not in row, "nobody has the value that was not sent"
        target[key] = tuple(
            old if new is UNCHANGED else new for new, old in zip(row, before or row, strict=True)
        )
    for row in net.inserted():
        assert row[0] not in target, "a row that is new is there already"
        assert UNCHANGED not in row
        target[row[0]] = row
    net.clear()


@settings(max_examples=500)
@given(courses())
def test_net_changes_leave_the_rows_of_the_source(course):
    start, changes = course
    net = NetChanges(SHAPE)
    target, source = dict(start), dict(start)
    for change in changes:
        if change[0] == "insert":
            source[change[1][0][0]] = change[1][0]
            net.insert(change[1])
        elif change[0] == "delete":
            del source[change[1]]
            net.delete(change[1], 1)
        else:
            _, key, row = change
            before = source.pop(key)
            source[row[0]] = (row[0], before[1] if row[1] is UNCHANGED else row[1])
            if change[0] == "put":
                net.put(row)
            elif not net.move(key, row, 1):  # the target has the value: it moves the row itself
                apply(net, target)
                target[row[0]] = (row[0], target.pop(key)[1])
    apply(net, target)
    assert target == source


@pytest.mark.parametrize(
    ("batches", "columns"),
    [
        ([[("1", "a")], RowBlock.of([("2", "b"), ("3", "c")])], True),
        ([[("1", "a"), ("4", "d"), ("5", "e")], RowBlock.of([("2", "b"), ("3", "c")])], False),
        ([[("1", ABSENT)], RowBlock.of([("2", "b"), ("3", "c")])], False),
        # a delete was left out: the last row of the key stays
        ([RowBlock.of([("1", "a"), ("2", "b")]), RowBlock.of([("1", "c")])], False),
    ],
)
def test_inserted_rows_stay_columns_where_most_came_so(batches, *, columns):
    net = NetChanges(SHAPE)
    for rows in batches:
        net.insert(rows)
    found = net.inserted()
    assert isinstance(found, RowBlock) is columns
    last = {row[0]: row for rows in batches for row in rows}
    assert sorted(map(str, found)) == sorted(map(str, last.values()))


__all__ = ["file"]


def test_a_transaction_in_two_parts_of_one_batch_needs_no_commit_before_it(file, monkeypatch):
    """Only one that ends in a later batch may take long, so that earlier ones must not wait for it."""
    source, target = Model(), file.opened()
    parts = []
    for number in range(4):
        source.insert(VISITS, [str(number), "page"])
        source.insert(VISITS, [str(number), "other page"])
        parts.append(source.commit())
    commits: list[bool] = []
    commit = target._target.commit

    def counted(*, durable: bool = True) -> None:
        commits.append(durable)
        commit(durable=durable)

    monkeypatch.setattr(target._target, "commit", counted)
    begins, ends = parts[1].split(1)
    target.write(batch(parts[0], begins, ends))
    assert len(commits) == 1
    begins, ends = parts[3].split(1)
    target.write(batch(parts[2], begins))
    assert len(commits) == 2
    target.write(batch(ends))
    assert len(commits) == 3
    assert file.rows("visits", "person", "page") == model(source.rows["public.visits"])


NEW_NAME = replace(VISITS, table="views")


@pytest.mark.parametrize(
    ("meanwhile", "left", "found"),
    [
        ("", [], [1, 2]),
        ("CREATE TABLE views (person int, page text)", [1], [2]),
        ("DROP TABLE visits", [], [2]),
    ],
    ids=["its new name is free", "its new name is another's", "it is gone"],
)
def test_a_table_that_is_renamed_is_renamed_in_the_target_if_it_can_be(
    file, meanwhile, left, found
):
    source = Model()
    file.deliver(source.inserted(VISITS, ["1", "page"]))
    if meanwhile:
        file.execute(meanwhile)
    file.deliver(source.inserted(NEW_NAME, ["2", "page"]))
    tables = {name for (name,) in file.execute("SELECT name FROM sqlite_master")}
    rows = {
        name: [number for (number,) in file.execute(f"SELECT person FROM {name} ORDER BY 1")]
        for name in tables & {"visits", "views"}
    }
    assert rows == ({"visits": left} if left else {}) | {"views": found}


@pytest.mark.parametrize("opened_again", [True, False])
def test_what_was_committed_is_left_out_when_it_comes_again(file, *, opened_again):
    """After a lost link the source begins anew, in batches that are cut elsewhere."""
    source, target = Model(), file.opened()
    parts = []
    for number in range(6):
        source.insert(VISITS, [str(number), "page"])  # without a key: it would be there twice
        parts.append(source.commit())
    target.write(batch(*map(copy_of, parts[:4])))
    if opened_again:
        target.close()
        target = file.opened()
    for first in range(0, 6, 3):
        target.write(batch(*parts[first : first + 3]))
    assert target.flush() == Position(parts[-1].end_lsn)
    assert file.rows("visits", "person", "page") == model(source.rows["public.visits"])


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("duckdb:///", "names no file"),
        ("duckdb:///rows.duckdb?nope=1", "has parameters"),
        ("postgresql://u:hidden@[::1/shop", "is no address"),
        ("postgresql://u:hidden@host:port/shop", "is no address"),
        ("mysql://u:hidden@localhost:1/shop?nope=1", "'nope'"),
    ],
)
def test_an_address_that_cannot_lead_to_a_target_is_refused(tmp_path, url, why):
    with pytest.raises(ConfigurationError, match=f"sink.url.*{why}") as refused:
        target_of(SqlProperties.model_validate({"url": url}), context(tmp_path)).open()
    assert "hidden" not in str(refused.value)


def test_without_a_library_the_error_names_it_and_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(SqlDriverMissing, match="sqlalchemy for sqlite://") as missing:
        target_of(SqlProperties.model_validate({"url": "sqlite:///f"}), context(tmp_path))
    assert missing.value.advice() == "Install it: pip install 'waltap[sql]'"
