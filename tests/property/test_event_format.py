"""Events and records that no transform changes are written to the bytes of a pipeline without transforms."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.harness.json_events import NOW, Server, json_format, table, through_records

from waltap.changes.decode.tuple_image import UNCHANGED
from waltap.encoders.json.event_format import JsonEventFormat

COLUMNS = (
    "id name not null", "t text", "n numeric(10,2)", "f float8", "b bool", "at timestamp",
    "tz timestamptz", "d date", "u uuid", "j jsonb", "x bytea",
)  # fmt: skip
TEXT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=9)
ROWS = st.tuples(
    st.integers(1, 3).map(str),
    st.none() | TEXT,
    st.none() | st.sampled_from(["1.00", "-99999999.99", "NaN", "no number"]),
    st.none() | st.sampled_from(["1.5", "1e+300", "Infinity", "-0"]),
    st.none() | st.sampled_from(["t", "f"]),
    st.none()
    | st.sampled_from(["2024-02-29 12:34:56.789012", "infinity", "0044-03-15 00:00:00 BC"]),
    st.none() | st.sampled_from(["2024-02-29 12:34:56+00", "-infinity"]),
    st.none() | st.sampled_from(["2024-02-29", "infinity"]),
    st.none() | st.just("0b5f1a2c-3d4e-4f60-8a7b-000000000001"),
    st.none() | TEXT,
    st.none() | st.sampled_from(["\\x", "\\x00ff"]),
)
STEPS = st.lists(st.tuples(st.sampled_from("cuUdr"), ROWS, ROWS), max_size=12)


SKIPPED = st.sampled_from(["t", "d", "c", "c,d"])


@given(STEPS, st.booleans(), st.booleans(), st.sampled_from("dfi"), SKIPPED)
def test_events_left_alone_are_the_same_bytes(steps, schemas, counted, identity, skipped):
    relation = table("t", *COLUMNS, identity=identity, index=("id",))
    server = Server()
    for step, row, old in steps:
        if step == "c":
            server.insert(relation, row)
        elif step == "u":
            server.update(relation, (*row[:9], UNCHANGED, row[10]))
        elif step == "U":
            server.update(relation, row, old)
        elif step == "d":
            server.delete(relation, row)
        else:
            server.snapshot(relation, [row, old], "first", "last")
    enabled = str(schemas).lower()
    properties = {
        "key.converter.schemas.enable": enabled,
        "value.converter.schemas.enable": enabled,
        "provide.transaction.metadata": str(counted).lower(),
        "skipped.operations": skipped,
    }
    plain = json_format(properties)
    context = replace(plain._tables._format, transforms=[("same", lambda events: events)])
    by_events = JsonEventFormat(plain._tables._properties, context)
    wanted = list(plain.render(server.parts, NOW))
    assert list(by_events.render(server.parts, NOW)) == wanted
    assert list(through_records(properties).render(server.parts, NOW)) == wanted
