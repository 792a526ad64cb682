"""Whatever the rows hold, records are JSON that reads back as the rows."""

import json
from dataclasses import replace
from itertools import groupby, pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs
from tests.harness.json_events import BARE, COMMIT_TS, NOW, Server, json_format, table

from waltap.changes.decode.message import Begin, Commit, Insert, Message
from waltap.changes.decode.tuple_image import UNCHANGED
from waltap.changes.events.event import Record
from waltap.changes.mapping.envelope import DEBEZIUM_2_5, NEWEST
from waltap.changes.transactions.assembly import TransactionAssembler
from waltap.changes.transactions.position import START
from waltap.changes.transactions.transaction import TransactionPart
from waltap.encoders.json.event_format import JsonEventFormat
from waltap.encoders.json.format import JsonFormat
from waltap.encoders.json.lines import JsonLines
from waltap_testing.workload import insert_block

TEXT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=30)
NAMES = TEXT.filter(bool)


def relation(identity: str = "d"):
    return table("t", "k text not null", "v text", "n int4", key=("k",), identity=identity)


def rendered(server: Server, **properties: str) -> list[dict]:
    records = json_format({**BARE, **properties}).render(server.parts, NOW)
    return [json.loads(line) for line in JsonLines().lines(records).splitlines()]


ONE, OTHER = relation("f"), table("o", "k text not null", "v text", "n int4", key=("k",))
ROW = st.tuples(st.sampled_from("abc"), st.none() | TEXT, st.sampled_from(["1", "-7", "no number"]))
STATEMENTS = st.tuples(st.sampled_from(["insert", "unsent", "update", "delete", "truncate", "message"]),
    st.sampled_from([ONE, OTHER]), ROW, ROW)  # fmt: skip
# How a transaction differs from the others: nothing, its origin, its xmin, no time, outside of any.
FORMS = [NEWEST, DEBEZIUM_2_5, replace(NEWEST, unsent=True)]
MARKS = st.sampled_from(["", "", "", "origin", "xmin", "undated", "message"])
TRANSACTIONS = st.lists(st.tuples(MARKS, st.lists(STATEMENTS, max_size=3)), min_size=1, max_size=8)
TWO_ROWS = [("insert", ONE, (key, None, "1"), ("a", None, "1")) for key in "ab"]
# Kinds that alternate, in two transactions of two tables.
ALTERNATING = [
    ("", [(kind, of, (key, None, number), ("b", key, "1")) for key in "abc"
          for kind in ("insert", "delete", "unsent", "update")])
    for of, number in ((OTHER, "1"), (ONE, "-7"), (OTHER, "no number"))
]  # fmt: skip


def transactions(drawn) -> Server:
    """Commit what was drawn."""
    server = Server()
    for mark, statements in drawn:
        if mark == "message":
            server.message("p", b"between", transactional=False)
            continue
        server.begin()
        for kind, of, new, old in statements:
            if kind == "insert":
                server.insert(of, new)
            elif kind == "unsent":
                server.update(of, (new[0], UNCHANGED, new[2]))
            elif kind == "update":
                server.update(of, new, old)
            elif kind == "delete":
                server.delete(of, old)
            elif kind == "truncate":
                server.truncate(of)
            else:
                server.message("p", b"inside")
        server.commit()
        part = server.parts[-1]
        if mark == "origin":
            part.origin, part.origin_lsn = "elsewhere", 77
        elif mark == "xmin":
            part.xmin = 690
        elif mark == "undated":
            part.commit_ts = 0
    return server


def made_format(properties, *, eventful: bool, **more) -> JsonFormat:
    """Return the format, with ``eventful`` behind a transform of events that changes none."""
    plain = json_format(properties, **more)
    if not eventful:
        return plain
    context = replace(plain._tables._format, transforms=[("same", lambda events: events)])
    return JsonEventFormat(plain._tables._properties, context)


def _single(part: TransactionPart) -> list[TransactionPart]:
    return [structs.replace(part, changes=[change]) for change in part.changes]


@given(
    TRANSACTIONS, st.booleans(), st.booleans(), st.sampled_from(FORMS), st.lists(st.integers(0, 8))
)
@example([("", []), ("", TWO_ROWS)], False, False, NEWEST, [])  # as many rows as transactions
@example(ALTERNATING, False, False, NEWEST, [])
@example(ALTERNATING, False, False, NEWEST, [1])
def test_transactions_rendered_together_have_the_records_of_each_alone(
    drawn, counted, eventful, form, cuts
):
    properties = {
        **BARE,
        "provide.transaction.metadata": str(counted).lower(),
        "event.converting.failure.handling.mode": "warn",
    }
    parts = transactions(drawn).parts
    alone, together = (made_format(properties, eventful=eventful, envelope=form) for _ in range(2))
    wanted = [
        record
        for part in parts
        # A change alone is not gathered with others.
        for each in ([part] if counted else _single(part))
        for record in alone.render([each], NOW)
    ]
    found, cuts = [], [0, *sorted(cut for cut in cuts if cut < len(parts)), len(parts)]
    for start, end in pairwise(cuts):
        found += together.render(parts[start:end], NOW)
    assert found == wanted


@given(st.lists(st.tuples(STATEMENTS, st.integers(1, 4)), max_size=6), st.booleans(), st.booleans())
def test_inserts_that_came_as_columns_among_others_have_the_records_of_rows(
    drawn, counted, eventful
):
    properties = {
        **BARE,
        "provide.transaction.metadata": str(counted).lower(),
        "event.converting.failure.handling.mode": "warn",
    }
    changes = [
        each
        for (kind, of, new, old), count in drawn
        for part in transactions([("", [(kind, of, new, old)] * count)]).parts
        for each in part.changes
    ]
    for number, each in enumerate(changes):
        each.lsn = 2000 + number
    wanted: list[Record] = []
    found: list[Record] = []
    lines = b""
    for columns, records in ((False, wanted), (True, found)):
        assembler = TransactionAssembler(START, None, None, 1 << 20)
        messages: list[Message] = [Begin(1000, 700, 3000, COMMIT_TS)]
        for insert, some in groupby(changes, lambda each: (type(each) is Insert) and each.relation):
            run = list(some)
            if columns and insert:
                messages.append(insert_block(insert, run))
            else:
                messages += run
        messages.append(Commit(3000, 3000, 3100, COMMIT_TS, 700))
        form = made_format(properties, eventful=eventful)
        rendered = form.render(assembler.feed(messages), NOW)
        assembler.close()
        records += rendered
        lines = b"".join(JsonLines().portions(rendered))
    assert found == wanted
    assert lines == JsonLines().lines(wanted)


@settings(max_examples=50)
@given(NAMES, NAMES, NAMES, TEXT)
def test_any_name_gives_json(schema, name, column_name, text):
    plain = table("t", "x text", key=("x",))
    made = plain.columns[0]
    named = type(plain)(
        oid=7,
        schema=schema,
        table=name,
        columns=(type(made)(name=column_name, type_oid=25, data_type=made.data_type),),
        primary_key=(column_name,),
    )
    server = Server()
    server.insert(named, (text,))
    (event,) = rendered(server, **{"table.ignore.builtin": "false"})
    assert event["key"] == event["value"]["after"] == {column_name: text}
    assert (event["value"]["source"]["schema"], event["value"]["source"]["table"]) == (schema, name)
