"""The canonical form hides what is volatile and nothing else."""

import copy
import json
from typing import Any

import pytest
from tests.differential.comparison import ABSENT, differences, report
from tests.differential.normalise import Record, canonical


def row(
    lsn: int, tx: int, commit: int | None, ms: int, after: dict[str, Any], **more: Any
) -> Record:
    """A create event as it comes from an engine."""
    source = {
        "version": "3",
        **{"ts_ms": ms, "ts_us": ms * 1000, "ts_ns": ms * 1000000},
        "sequence": json.dumps([None if commit is None else str(commit), str(lsn)]),
        **{"txId": tx, "lsn": lsn, "xmin": None},
    }
    value = {"before": None, "after": after, "source": source, "op": "c", "ts_ms": ms + 5}
    return {
        "topic": more.pop("topic", "t.public.a"),
        "key": more.pop("key", {"id": after["id"]}),
        "value": {**value, **more},
    }


ONE = [
    row(100, 7, None, 1000, {"id": 1}),
    row(120, 7, None, 1000, {"id": 2}),
    row(300, 9, 200, 1500, {"id": 3}),
]
LATER = [
    row(5100, 70, None, 2000, {"id": 1}),
    row(5104, 70, None, 2000, {"id": 2}),
    row(5900, 71, 5300, 2001, {"id": 3}),
]


def changed(place: int, **source: Any) -> list[Record]:
    records = copy.deepcopy(LATER)
    records[place]["value"]["source"].update(source)
    return records


@pytest.mark.parametrize(
    "source",
    [
        pytest.param({"txId": 71}, id="row-in-another-transaction"),
        pytest.param({"lsn": 6000}, id="records-out-of-order"),
        pytest.param({"ts_us": 2000001 * 1000}, id="times-that-disagree"),
        pytest.param({"ts_ms": "2000"}, id="time-as-text"),
        pytest.param({"db": "x"}, id="a-further-field"),
    ],
)
def test_a_wrong_source_block_is_seen(source: dict[str, Any]) -> None:
    assert differences(canonical(ONE), canonical(changed(1, **source)))


def test_an_integer_is_not_a_float() -> None:
    other = copy.deepcopy(LATER)
    other[2]["value"]["after"]["id"] = 3.0
    [difference] = differences(canonical(ONE), canonical(other))
    assert difference.path == ".value.after.id"
    assert (difference.expected, difference.found) == (3, 3.0)


@pytest.mark.parametrize(
    ("expected", "found", "path"),
    [
        pytest.param(None, 0, ".value.after.v", id="null-and-zero"),
        pytest.param(1, True, ".value.after.v", id="number-and-boolean"),
        pytest.param([1, 2], [1], ".value.after.v[1]", id="shorter-array"),
        pytest.param({"a": 1}, {}, ".value.after.v.a", id="missing-field"),
    ],
)
def test_values_of_different_kind_differ(expected: Any, found: Any, path: str) -> None:
    wanted, got = (row(1, 1, None, 1, {"id": 1, "v": value}) for value in (expected, found))
    [difference] = differences(canonical([wanted]), canonical([got]))
    assert difference.path == path


def test_a_record_that_only_one_side_has_is_one_difference() -> None:
    [missing] = differences(canonical(ONE), canonical(LATER[:2]))
    assert (missing.path, missing.found) == ("", ABSENT)
    [extra] = differences(canonical(LATER[:2]), canonical(ONE))
    assert (extra.path, extra.expected) == ("", ABSENT)
    assert "1  whole records" in report([extra])
