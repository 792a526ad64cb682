"""What single records hold, where no corpus shows it."""

import json
from dataclasses import replace

import pytest
from msgspec import structs
from tests.harness.json_events import (
    BARE,
    COMMIT_TS,
    NOW,
    column,
    format_context,
    json_format,
    part,
    split_properties,
    table,
    through_records,
    values,
)

from waltap.changes.decode.message import Delete, Insert, OldTuple, Truncate, Update
from waltap.changes.decode.relation import Column, DataType, Relation, TypeKind
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED
from waltap.changes.events.event import Record
from waltap.changes.mapping.envelope import NEWEST
from waltap.changes.transactions.transaction import Heartbeat, SnapshotRows, TransactionPart
from waltap.encoders.format.conversion import json_records
from waltap.encoders.format.format import FormatContext
from waltap.encoders.json.event_format import JsonEventFormat
from waltap.encoders.json.format import JsonFormat
from waltap.encoders.json.lines import JsonLines
from waltap.errors import ConfigurationError, DecodeError

A = table("a", "id int4 not null", "v text")


def render(*parts, **properties) -> list[Record]:
    return json_format({**BARE, **properties}).render(list(parts), NOW)


# --- source block -----------------------------------------------------------------------------------


def test_envelope_and_source_have_debeziums_fields_in_their_order():
    (record,) = render(part(Insert(A, 0, ("1", "x")), origin='up"stream', origin_lsn=55))
    value = json.loads(record.value)
    source = value["source"]
    assert source.pop("version").startswith("waltap ")
    assert list(source.items()) == [
        ("connector", "postgresql"),
        ("name", "t"),
        ("ts_ms", COMMIT_TS // 1000),
        ("snapshot", "false"),
        ("db", "shop"),
        ("sequence", '["900","1000"]'),
        ("ts_us", COMMIT_TS),
        ("ts_ns", COMMIT_TS * 1000),
        ("schema", "public"),
        ("table", "a"),
        ("txId", 7),
        ("lsn", 1000),
        ("xmin", None),
        ("origin", 'up"stream'),
        ("origin_lsn", 55),
    ]
    assert list(value) == [
        "before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns",
    ]  # fmt: skip
    assert (value["ts_ms"], value["ts_us"], value["ts_ns"]) == (NOW // 10**6, NOW // 1000, NOW)


@pytest.mark.parametrize("old", [("1", ABSENT), ("2", ABSENT)], ids=["key stays", "key changes"])
def test_an_update_with_an_old_key_names_its_unsent_fields(old):
    keyed = table("k", "id int4 not null", "v text", key=("id",))
    update = Update(keyed, 0, ("1", UNCHANGED), old, OldTuple.KEY)
    form = replace(NEWEST, unsent=True)
    found = json_format(BARE, envelope=form).render([part(update)], NOW)
    values = [json.loads(record.value) for record in found if record.value]
    assert values[-1]["unsent"] == ["v"]
    assert [each["unsent"] for each in values[:-1]] == [None] * (len(values) - 1)


# --- rows -------------------------------------------------------------------------------------------


def test_null_is_the_default_in_values_unless_so_configured():
    """The marker of snapshots has a default, too."""
    relation = table("d", "id int4", "n int4 default 5")
    given = {"value.converter.replace.null.with.default": "false"}
    for properties, n, snapshot in (({}, 5, "false"), (given, None, None)):
        (value,) = values(render(part(Insert(relation, 0, ("1", None))), **properties))
        assert value["after"] == {"id": 1, "n": n}
        assert value["source"]["snapshot"] == snapshot


@pytest.mark.parametrize("part_of_record", ["key", "value"])
def test_default_for_null_is_each_converters_own(part_of_record):
    """A delete must have the key of its insert, or a compacted topic keeps the row."""
    relation = table("d", "id int4 not null", "c text default 'x'", identity="f")
    properties = {
        **BARE,
        "message.key.columns": r"public\.d:c",
        f"{part_of_record}.converter.replace.null.with.default": "false",
    }
    row, missing = ("1", None), ("1", UNCHANGED)
    changes = [
        Insert(relation, 0, row),
        Update(relation, 0, ("2", None), row, OldTuple.FULL),
        Delete(relation, 0, ("2", None), OldTuple.FULL),
        Insert(relation, 0, missing),
    ]
    sent = [part(*changes)]
    keys = [record.key for record in json_format(properties).render(sent, NOW)]
    assert keys == [record.key for record in through_records(properties).render(sent, NOW)]
    assert len(set(keys[:-1])) == 1


def test_table_that_is_not_captured_gives_nothing():
    hidden = table("hidden", "id int4 not null")
    changes = [Insert(hidden, 0, ("1",)), Update(hidden, 0, ("1",)), Truncate((hidden, A), 0)]
    found = render(
        part(*changes), **{"table.include.list": r"public\.a", "skipped.operations": "none"}
    )
    assert [(v["op"], v["source"]["table"]) for v in values(found)] == [("t", "a")]


def test_two_columns_with_one_adjusted_name_are_refused():
    relation = table("clash", '"a-b" int4', '"a.b" int4', key=())
    with pytest.raises(ConfigurationError, match="same field name: a_b"):
        render(part(Insert(relation, 0, ("1", "2"))), **{"field.name.adjustment.mode": "avro"})


def test_unknown_type_leaves_its_column_out_of_value_and_key():
    odd = Column(
        name="odd",
        type_oid=999999,
        data_type=DataType(oid=999999, schema="s", name="mystery"),
        nullable=False,
    )
    plain = column("id int4 not null")
    relation = table("m", "id int4 not null")
    relation = type(relation)(
        oid=1, schema="public", table="m", columns=(odd, plain), primary_key=("odd", "id")
    )
    (record,) = render(part(Insert(relation, 0, ("?", "1"))))
    assert json.loads(record.key) == {"id": 1}
    assert json.loads(record.value)["after"] == {"id": 1}


# --- values that do not fit -------------------------------------------------------------------------


def transforming(form: JsonFormat) -> FormatContext:
    """Return the context of ``form`` with a transform of events."""
    return replace(form._tables._format, transforms=[("same", lambda events: events)])


def misfits() -> TransactionPart:
    relation = table("b", "id int4 not null", "d date", "v text", key=("v",))
    return part(
        Insert(relation, 0, ("1", "no date", "a")),
        Update(relation, 0, ("1", "no date", "b")),
        Insert(relation, 0, ("2", "2020-01-01", "c")),
    )


@pytest.mark.parametrize("mode", ["warn", "skip", "fail"])
def test_a_misfit_is_null_and_reported_or_stops_without_its_value(mode):
    reported: list[str] = []
    given = {**BARE, "event.converting.failure.handling.mode": mode}
    form = json_format({**given, "provide.transaction.metadata": "true"}, warn=reported.append)
    if mode == "fail":
        with pytest.raises(DecodeError, match="date in column d of public.b") as caught:
            form.render([misfits()], NOW)
        assert "no date" not in str(caught.value)
        return
    found = [v for v in values(form.render([misfits()], NOW)) if "op" in v]
    assert [v["after"]["d"] for v in found] == [None, None, 18262]
    assert [v["transaction"]["total_order"] for v in found] == [1, 2, 3]
    assert [text.partition(": ")[0] for text in reported] == ["column d of public.b"] * (
        mode == "warn"
    )
    assert "no date" not in "".join(reported)


@pytest.mark.parametrize("transformed", [False, True])
def test_what_became_null_names_each_table_once_whichever_share_a_column(transformed):
    """Columns that look alike share their conversion: only rows show whose value it was."""
    columns = "id int4 not null", "n numeric(9,2)"
    tables = [table(name, *columns, key=("id",)) for name in ("a", "b", "c")]
    a, b, c = tables
    reported: list[str] = []
    made = json_format(BARE, warn=reported.append)
    if transformed:
        made = JsonEventFormat(made._tables._properties, transforming(made))
    changes = Insert(a, 0, ("1", "1.5")), Insert(b, 0, ("1", "NaN")), Update(b, 0, ("1", "NaN"))
    found = made.render([part(*changes)], NOW)
    assert [v["after"]["n"] for v in values(found)] == ["AJY=", None, None]
    assert len(reported) == 1
    assert "column n of public.b: " in reported[0]
    made.render([part(Insert(b, 0, ("2", "NaN")), Insert(a, 0, ("2", "2.5")))], NOW)
    assert len(reported) == 1
    deleted = Delete(c, 0, ("1", "NaN"), OldTuple.FULL)
    made.render([part(deleted, Insert(b, 0, ("3", "NaN")))], NOW)
    assert ["column n of public.c: " in text for text in reported] == [False, True]
    rows = [("1", "1.50"), ("2", "NaN")]
    made.render(
        [SnapshotRows(relation=table("d", *columns), rows=rows, ts=1, lsn=5, xid=None)], NOW
    )
    assert "column n of public.d: " in reported[2]


@pytest.mark.parametrize("mode", ["warn", "fail"])
@pytest.mark.parametrize("change", ["insert", "update", "delete", "changed key"])
def test_misfit_of_a_key_stops_in_every_mode(mode, change):
    """Rows with null, or 0, in their keys would be one row."""
    relation = table("b", "id int4 not null", "v text")
    changes = {
        "insert": Insert(relation, 0, ("x1", "a")),
        "update": Update(relation, 0, ("x1", "a")),
        "delete": Delete(relation, 0, ("x1", ABSENT), OldTuple.KEY),
        "changed key": Update(relation, 0, ("1", "a"), ("x1", ABSENT), OldTuple.KEY),
    }
    given = {**BARE, "event.converting.failure.handling.mode": mode}
    for form in (json_format(given), through_records(given)):
        with pytest.raises(DecodeError, match=r"a value of int4 in .*id") as caught:
            form.render([part(changes[change])], NOW)
        assert "x1" not in str(caught.value)


@pytest.mark.parametrize("change", [Insert(A, 0, ("1",)), Update(A, 0, ("1", "x", "y"))])
def test_tuple_of_another_width_is_a_decode_error(change):
    with pytest.raises(DecodeError, match=r"tuples as wide as public\.a"):
        render(part(change))


# --- schemas that change ----------------------------------------------------------------------------


def test_relation_announced_again_gets_a_new_key_from_the_catalogue():
    columns = ("a int4 not null", "b int4")
    keyless, keyed = table("p", *columns, key=()), table("p", *columns, key=("a",))
    records = render(part(Insert(keyless, 0, ("1", "2")), Insert(keyed, 0, ("1", "3"))))
    assert [record.key for record in records] == [None, b'{"a":1}']


def test_rows_are_read_with_the_relation_they_came_under_and_many_versions_are_not_kept():
    form = json_format(BARE)
    for n in range(20):
        version = table("a", "id int4 not null", f"v{n} int4", "w text")
        changes = (
            Insert(A, 0, ("1", "x")),
            Insert(version, 0, ("2", "5", "w")),
            Update(A, 0, ("3", "y")),
        )
        assert [v["after"] for v in values(form.render([part(*changes)], NOW))] == [
            {"id": 1, "v": "x"}, {"id": 2, f"v{n}": 5, "w": "w"}, {"id": 3, "v": "y"},
        ]  # fmt: skip
    assert len(form._tables.compiled) <= 4


# --- records that are no rows -----------------------------------------------------------------------


def test_heartbeat_goes_to_partition_0_without_headers():
    (record,) = render(Heartbeat(ts=5))
    assert record == Record("__debezium-heartbeat.t", b'{"serverName":"t"}', b'{"ts_ms":5}', (), 0)


def test_regex_naming_adds_the_table_to_keys():
    from waltap.plugin import register_topic_naming

    properties = {
        "topic.regex": r"t\.public\.(\w+)_\d",
        "topic.replacement": "t.all.$1",
        "topic.key.field.regex": r"t\.public\.(.*)",
        "topic.key.field.replacement": "$1",
    }
    capture, _ = split_properties({"topic.prefix": "t", **properties})
    naming = next(spec for spec in register_topic_naming() if spec.name == "schema_regex").factory(
        capture
    )
    form = json_format({**BARE, **properties}, naming=naming)
    shard, keyless = table("orders_1", "id int4 not null"), table("log_2", "v text", key=())
    records = form.render([part(Insert(shard, 0, ("1",)), Insert(keyless, 0, ("x",)))], NOW)
    assert [record.topic for record in records] == ["t.all.orders", "t.all.log"]
    assert [record.key for record in records] == [
        b'{"id":1,"__dbz__physicalTableIdentifier":"orders_1"}',
        b'{"__dbz__physicalTableIdentifier":"log_2"}',
    ]


# --- types that grow --------------------------------------------------------------------------------


def pairs(*attributes: str) -> Relation:
    """A table whose second column is of a composite type."""
    whole = DataType(oid=23, schema="pg_catalog", name="int4")
    members = tuple((name, whole, -1) for name in attributes)
    pair = DataType(
        oid=90_002, schema="public", name="pair", kind=TypeKind.COMPOSITE, attributes=members
    )
    key, value = table("pairs", "id int4 not null", "v int4").columns
    columns = (key, structs.replace(value, type_oid=pair.oid, data_type=pair))
    return structs.replace(table("pairs", "id int4 not null", "v int4"), columns=columns)


def growing(given: dict[str, str], now: Relation) -> JsonFormat:
    return json_format(
        {**BARE, "waltap.composite.types": "struct", **given},
        renew=lambda relation: now if relation.columns[1] != now.columns[1] else relation,
    )


def test_each_row_of_a_batch_has_the_attribute_that_its_type_got():
    """The changes of both kinds are rendered by what was compiled before."""
    form, was = growing({}, pairs("x", "y")), pairs("x")
    rows = [Insert(was, 0, ("1", "(1,2)")), Update(was, 0, ("1", "(3,4)"))] * 10
    found = form.render([part(*rows)], NOW) + form.render([part(*rows)], NOW)
    assert [record["after"]["v"] for record in values(found)] == [
        {"x": 1, "y": 2},
        {"x": 3, "y": 4},
    ] * 20


@pytest.mark.parametrize("converted", [False, True])
def test_a_type_is_read_again_once_after_repeated_announcements(converted):
    """A reconnected source announces the same tables as other objects."""
    asked, now = [], pairs("x", "y")

    def renew(relation):
        asked.append(relation)
        return now

    given = {**BARE, "topic.prefix": "t", "waltap.composite.types": "struct"}
    context = format_context(given, renew=renew, transforms=[("same", lambda events: events)])
    form = (json_records if converted else JsonEventFormat)(split_properties(given)[1], context)
    for _ in range(6):
        was = pairs("x")
        form.render([part(Insert(was, 0, ("1", "(1)")))], NOW)
    grown = [part(*(Insert(was, 0, ("1", "(1,2)")) for _ in range(3)))]
    found = form.render(grown, NOW) + form.render(grown, NOW)
    assert [record["after"]["v"] for record in values(found)] == [{"x": 1, "y": 2}] * 6
    assert len(asked) == 1


def transformed_with_names(was: Relation, now: Relation) -> tuple[JsonFormat, SnapshotRows]:
    """Return a format for events, whose streamed names are null, and a row of a snapshot."""
    was, now = (
        structs.replace(each, columns=(*each.columns, column("nm name"))) for each in (was, now)
    )
    plain = growing({"waltap.streamed.names": "null"}, now)
    piece = SnapshotRows(
        relation=was, rows=[("1", "(1,2)", "n")], ts=1, lsn=5, xid=None, previous_end_lsn=None,
        first_marker="first", last_marker="last", kind="initial",
    )  # fmt: skip
    return JsonEventFormat(plain._tables._properties, transforming(plain)), piece


def test_a_snapshot_has_its_own_values_where_a_type_grew_and_events_are_transformed():
    form, piece = transformed_with_names(pairs("x"), pairs("x", "y"))
    (found,) = values(form.render([piece], NOW))
    assert found["after"] == {"id": 1, "v": {"x": 1, "y": 2}, "nm": "n"}


def test_a_value_that_does_not_fit_leaves_snapshot_and_stream_apart():
    form, piece = transformed_with_names(pairs("x"), pairs("x"))
    streamed = part(Insert(piece.relation, 0, ("2", "(1,2)", "n")))
    for sent, name in ((piece, "n"), (streamed, None), (piece, "n")):
        (found,) = values(form.render([sent], NOW))
        assert (found["after"]["v"], found["after"]["nm"]) == (None, name)


# --- lines ------------------------------------------------------------------------------------------


def test_lines_follow_changes_of_topic_and_headers():
    one, two = (("h", b"1"),), (("h", b"2"),)
    records = [
        Record("a", None, b"1", one),
        Record("b", b"2", b"3", two),
        Record("a", None, b"4"),
        Record("a", None, b"5", one),
    ]
    writer = JsonLines()
    found = [json.loads(line) for line in writer.lines(records).splitlines()]
    assert [(f["topic"], f["value"], [h["value"] for h in f["headers"]]) for f in found] == [
        ("a", 1, [1]),
        ("b", 3, [2]),
        ("a", 4, []),
        ("a", 5, [1]),
    ]
    assert writer.lines(records) == b"".join(writer.line(record) for record in records)
