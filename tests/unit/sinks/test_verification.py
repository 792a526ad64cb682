"""`waltap verify`: the rows that changes of a change log come to, how it connects, and what a comparison looks like."""

from typing import Any

from tests.harness.changelog import WrittenLog, relation

from waltap_sinks.changelog.verification import ComparableLog, CurrentRows


def change(op: str, **row: Any) -> tuple[str, dict[str, Any]]:
    return op, row


def held(*transactions: list[tuple[str, dict[str, Any]]], key: tuple[str, ...] = ("id",)) -> Any:
    rows = CurrentRows(("id", "a", "b"), key)
    for number, changes in enumerate(transactions):
        for op, row in changes:
            rows.apply(op, row, transaction=number, second=row.pop("second", False))
    return sorted(map(tuple, rows.rows()), key=str)


def test_rows_that_change_places_keep_their_own_values():
    """A deferrable key: a row is put under 2 before the one that is there is taken away."""
    found = held(
        [change("c", id=1, a="one", b="long 1"), change("c", id=2, a="two", b="long 2")],
        [
            change("d", id=1),
            change("c", id=2, a="one", b=None, _unchanged=["b"], second=True),
            change("d", id=2),
            change("c", id=1, a="two", b=None, _unchanged=["b"], second=True),
        ],
    )
    assert found == [(1, "two", "long 2"), (2, "one", "long 1")]


def test_rows_without_a_key_are_counted():
    found = held(
        [change("c", id=1, a=[1, 2]), change("c", id=1, a=[1, 2]), change("c", id=2, a=None)],
        [change("d", id=1, a=[1, 2]), change("u", id=3, a=[])],
        key=(),
    )
    assert found == [(1, [1, 2], None), (2, None, None), (3, [], None)]


def test_a_truncate_leaves_nothing():
    assert held([change("c", id=1, a="x")], [change("t"), change("c", id=2, a="y")]) == [
        (2, "y", None)
    ]


def test_changes_before_a_rename_that_are_read_again_are_of_the_same_table(tmp_path):
    """A pipeline without its offset begins another epoch."""
    before, now = (relation(name, [("id", "int4")], oid=7) for name in "ab")
    log = WrittenLog(tmp_path)
    with log.open():
        log.insert(before, ["1"])
        log.insert(now, ["2"])
    with log.open():
        log.insert(before, ["3"])
        log.insert(now, ["4"])
    assert [each.log_position.epoch for each in log.manifests()] == [1, 1, 2, 2]
    compared = ComparableLog(log.log)
    (table,) = compared.tables()
    assert (table.name, table.oid) == ("", 7)
    assert compared.reader(table, [("id", "int4")], ["id"]).total()[0] == 4
