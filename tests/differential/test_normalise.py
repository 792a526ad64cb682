"""The canonical form hides what is volatile and nothing else."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from tests.differential.comparison import ABSENT, differences, report
from tests.differential.normalise import SAME, Record, canonical, lines, payload, read


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


def test_two_runs_of_one_workload_are_equal() -> None:
    assert differences(canonical(ONE), canonical(LATER)) == []


def test_input_is_left_as_it_is() -> None:
    before = copy.deepcopy(ONE)
    canonical(ONE)
    assert before == ONE


def test_canonical_form_is_stable() -> None:
    once = canonical(ONE)
    assert canonical(once) == once


@pytest.mark.parametrize("commit", [200, 300])
def test_sequence_shows_which_records_lie_before_its_commit(commit: int) -> None:
    records = canonical([*ONE[:2], row(300, 9, commit, 1500, {"id": 3})])
    assert records[2]["value"]["source"]["sequence"] == ["after lsn#2", "lsn#3"]


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


def test_nan_equals_nan() -> None:
    records = [row(1, 1, None, 1, {"id": 1, "v": float("nan")})]
    assert differences(canonical(records), canonical(records)) == []


def test_a_record_that_only_one_side_has_is_one_difference() -> None:
    [missing] = differences(canonical(ONE), canonical(LATER[:2]))
    assert (missing.path, missing.found) == ("", ABSENT)
    [extra] = differences(canonical(LATER[:2]), canonical(ONE))
    assert (extra.path, extra.expected) == ("", ABSENT)
    assert "1  whole records" in report([extra])


def test_schemas_are_written_once_per_topic_until_they_change() -> None:
    narrow, wide = ({"type": "struct", "fields": fields} for fields in ([], [1]))
    records = [
        {
            "topic": "x",
            "key": None,
            "value": {"schema": schema, "payload": {"op": "c", "after": {"n": 1}}},
        }
        for schema in (narrow, narrow, wide, narrow)
    ]
    assert [record["value"]["schema"] for record in canonical(records)] == [
        narrow,
        SAME,
        wide,
        narrow,
    ]


def test_headers_are_written_once_and_run_ids_hidden() -> None:
    headers = [
        {
            "key": "__debezium.context.runId",
            "value": {"schema": {"type": "string"}, "payload": "0-1"},
        }
    ]
    first, second = canonical([{**ONE[0], "headers": headers}, {**ONE[1], "headers": headers}])
    assert first["headers"][0]["value"]["payload"] == "<uuid>"
    assert second["headers"] == SAME


def test_heartbeats_fold_into_one_at_the_end_without_a_rank() -> None:
    beats = [
        {"topic": "__debezium-heartbeat.t", "key": {"serverName": "t"}, "value": {"ts_ms": 5 + i}}
        for i in range(3)
    ]
    *records, beat = canonical([*beats, *ONE])
    assert records == canonical(ONE)
    assert beat["value"] == {"ts_ms": "<ts>"}


def test_collapsed_topics_take_no_part_in_ranks() -> None:
    noisy = [ONE[0], row(110, 8, None, 1000, {"id": 9}, topic="t.public.noise"), *ONE[1:]]
    assert canonical(noisy, ["noise$"])[:3] == canonical(ONE)


def test_transaction_ids_show_transaction_and_place() -> None:
    begin = {
        "topic": "t.transaction",
        "key": {"id": "7:90"},
        "value": {"status": "BEGIN", "id": "7:90"},
    }
    first, second, *_ = canonical(
        [
            begin,
            *(
                row(100 + i, 7, None, 1, {"id": i}, transaction={"id": f"7:{100 + i}"})
                for i in (0, 1)
            ),
        ]
    )
    assert first["key"] == {"id": "tx#1:after lsn#0"}
    assert first["value"]["id"] == "tx#1:after lsn#0"
    assert second["value"]["transaction"]["id"] == "tx#1:after lsn#0"


def test_window_ids_of_incremental_snapshots_are_hidden() -> None:
    name = "0a1b2c3d-0000-4000-8000-00000000abcd-open"
    data = '{"openWindowTimestamp": "2024-01-01T00:00:00Z"}'
    [record] = canonical([row(1, 1, None, 1, {"id": name, "data": data})])
    assert record["value"]["after"] == {
        "id": "<uuid>-open",
        "data": '{"openWindowTimestamp": "<ts>"}',
    }
    assert record["key"] == {"id": "<uuid>-open"}


def test_java_object_ids_are_hidden() -> None:
    rows = [{"id": 1, "v": [f"[Ljava.lang.String;@{n}", "plain"]} for n in ("1f2e3d", "aa")]
    first, second = (canonical([row(1, 1, None, 1, after)]) for after in rows)
    assert first == second
    assert first[0]["value"]["after"]["v"] == ["<java array>", "plain"]


def test_counts_of_messages_have_one_name_and_place() -> None:
    names = ["io.debezium.relational.MessageId@1f", "LOGICAL_DECODING_MESSAGE"]
    first, second = (
        canonical(
            [
                {
                    "topic": "t.transaction",
                    "key": {"id": "7"},
                    "value": {
                        **{"status": "END", "id": "7"},
                        "data_collections": [
                            {"data_collection": "public.a", "event_count": 2},
                            {"data_collection": name, "event_count": 1},
                        ],
                    },
                }
            ]
        )
        for name in names
    )
    assert first == second
    assert [count["event_count"] for count in first[0]["value"]["data_collections"]] == [1, 2]


def test_a_dump_may_hold_json_or_json_as_text(tmp_path: Path) -> None:
    plain, quoted = tmp_path / "plain", tmp_path / "quoted"
    plain.write_text("".join(json.dumps(record) + "\n" for record in ONE))
    quoted.write_text(
        "".join(
            json.dumps({**r, "key": json.dumps(r["key"]), "value": json.dumps(r["value"])}) + "\n"
            for r in ONE
        )
    )
    assert read(plain) == read(quoted) == ONE


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text('{"topic": "t", "key": null, "value": null}\n{"topic"\n')
    with pytest.raises(ValueError, match=r"broken:2: not a record"):
        read(broken)


def test_half_surrogates_survive_being_written(tmp_path: Path) -> None:
    records = [{"topic": "t", "key": None, "value": {"after": {"v": "\ud83d"}}}]
    written = tmp_path / "dump"
    written.write_text("\n".join(lines(records)), encoding="utf-8")
    assert payload(read(written)[0]["value"]) == records[0]["value"]
