"""Which tables, columns, keys and messages are captured; patterns as Java writes them; what is wrong with bad lists."""

import pytest
from pydantic import ValidationError
from tests.harness.json_events import split_properties, table

from waltap.changes.capture.capture import CaptureRules
from waltap.changes.capture.java_regex import java_pattern, java_replacement
from waltap.plugin import register_topic_naming


def capture(**properties: str) -> CaptureRules:
    return CaptureRules(split_properties({"topic.prefix": "t", **properties})[0])


@pytest.mark.parametrize(
    ("properties", "captured", "left_out"),
    [
        ({}, ["public.a", "other.b"], ["pg_catalog.pg_class", "information_schema.x"]),
        ({"schema.include.list": "pub.*"}, ["public.a"], ["other.a"]),
        ({"schema.exclude.list": "other"}, ["public.a"], ["other.a"]),
        ({"table.include.list": "public.a"}, ["public.a"], ["public.ab", "xpublic.a"]),
        ({"table.include.list": "public.a , ,public.b"}, ["public.a", "public.b"], ["public.c"]),
        ({"table.include.list": "PUBLIC.A"}, ["public.a", "Public.A"], []),
        ({"table.include.list": r"public\.a{1\,2}"}, ["public.a", "public.aa"], ["public.aaa"]),
        (
            {"schema.include.list": "public", "table.include.list": r".*\.a"},
            ["public.a"],
            ["other.a", "public.b"],
        ),
        ({"schema.include.list": "public"}, [], ["public.spatial_ref_sys"]),
        ({"table.ignore.builtin": "false"}, ["pg_catalog.pg_class", "pg_temp_3.x"], []),
        (
            {"table.include.list": "public.a", "signal.data.collection": "ops.signals"},
            ["public.a", "ops.signals"],
            ["ops.other", "OPS.signals"],
        ),
        ({"table.include.list": "x", "signal.data.collection": "db.ops.s"}, ["ops.s"], ["db.s"]),
        ({"table.include.list": r"public\.\Qa.b\E"}, ["public.a.b"], ["public.axb"]),
        ({"table.include.list": r"public\.\p{Lower}+"}, ["public.abc"], ["public.a1"]),
    ],
)
def test_tables(properties, captured, left_out):
    found = capture(**properties)
    for name in captured:
        assert found.captures(*name.split(".", 1)), name
    for name in left_out:
        assert not found.captures(*name.split(".", 1)), name


PEOPLE = table("people", "id int4 not null", "name text", "Mail text", "age int4")


@pytest.mark.parametrize(
    ("text", "indexes"),
    [
        ("public.people:age,id", (3, 0)),
        (" (.*).people: MAIL ; other:x", (2,)),
        ("public.people :mail", (0,)),
        ("public.others,public.people:name", (1,)),
        ("public.people:name,name", (1,)),
        ("public.people:nothing", (0,)),
    ],
)
def test_message_key_columns(text, indexes):
    assert capture(**{"message.key.columns": text}).keys(PEOPLE) == indexes


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({"topic.prefix": "with space"}, "topic.prefix"),
        (
            {"table.include.list": "a", "table.exclude.list": "b"},
            "table.include.list and table.exclude",
        ),
        (
            {"schema.include.list": "a", "schema.exclude.list": "b"},
            "schema.include.list and schema",
        ),
        ({"table.include.list": "fine,bad("}, r"(?s)table\.include\.list.*'bad\('"),
        ({"skipped.operations": "c,x"}, "no such word: x"),
        ({"skipped.operations": "none,c"}, "none must be the only value"),
        ({"message.key.columns": "no colon"}, "no colon"),
        ({"message.key.columns": "a(:x"}, r"a\("),
        ({"unavailable.value.placeholder": "hex:abc"}, "hexadecimal"),
        ({"signal.data.collection": "signals"}, r"schema\.table"),
        ({"signal.data.collection": "s.one, two"}, "one table"),
        ({"column.mask.hash.NOPE-1.with.salt.x": "a"}, "unknown hash algorithm NOPE-1"),
        ({"column.mask.with.3.chars": "a["}, r"column\.mask\.with\.3\.chars: not a regular"),
        ({"time.precision.mode": "exact"}, r"time\.precision\.mode"),
    ],
)
def test_wrong_properties_are_named(properties, named):
    with pytest.raises(ValidationError, match=named):
        split_properties({"topic.prefix": "t", **properties})


def topics(name: str, **properties: str) -> list[str]:
    given, _ = split_properties({"topic.prefix": "t", **properties})
    naming = next(
        spec for spec in register_topic_naming() if name in (spec.name, *spec.aliases)
    ).factory(given)
    found = CaptureRules(given, naming)
    return [found.topic("s_1", "a"), found.topic("my schema", "ünï")]


@pytest.mark.parametrize(
    ("name", "properties", "expected"),
    [
        ("schema", {}, ["t.s_1.a", "t.my_schema._n_"]),
        ("DefaultTopicNamingStrategy", {"topic.delimiter": "-"}, ["t-a", "t-_n_"]),
        ("schema_unicode", {}, ["t.s_u005f1.a", "t.my_u0020schema._u00fcn_u00ef"]),
        ("table_unicode", {}, ["t.a", "t._u00fcn_u00ef"]),
        (
            "schema_regex",
            {"topic.regex": r"t\.s_(\d)\.(.*)", "topic.replacement": "$2-${1}x"},
            "not a replacement",  # ${1} names a group, and there is none called 1
        ),
        ("schema_regex", {}, r"topic\.regex and topic\.replacement"),
        (
            "schema_regex",
            {"topic.regex": r"t\.s_(?<n>\d)\.(.*)", "topic.replacement": r"$2-${n}\$"},
            ["a-1$", "t.my_schema._n_"],
        ),
        (
            "table_regex",
            {"topic.regex": r"t\.(.*)", "topic.replacement": "all.$1"},
            ["all.a", "all._n_"],
        ),
    ],
)
def test_topic_naming(name, properties, expected):
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            topics(name, **properties)
    else:
        assert topics(name, **properties) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("." * 1, "_"), ("..", "__"), ("x" * 300, "x" * 249), ("a😀b", "a__b")],
)
def test_topics_are_sanitised_as_kafka_wants(name, expected):
    from waltap.changes.capture.topic_naming import sanitised_topic

    assert sanitised_topic(name) == expected


TEN = "(a)(b)(c)(d)(e)(f)(g)(h)(i)(j)"


def test_topics_of_the_pipeline_itself():
    found = capture(
        **{"topic.delimiter": "_", "topic.transaction": "tx", "topic.heartbeat.prefix": "hb"}
    )
    assert (found.heartbeat_topic, found.transaction_topic, found.message_topic) == (
        "hb_t",
        "t_tx",
        "t.message",
    )
    assert capture(**{"topic.heartbeat.name": "beat"}).heartbeat_topic == "beat"


@pytest.mark.parametrize(
    ("regex", "replacement", "topic", "expected"),
    [
        (TEN, "$10-$1", "abcdefghij", "j-a"),
        (TEN, "$11", "abcdefghij", "a1"),  # there is no eleventh group
        ("(a)", "$1²", "a", "a²"),
        ("(?<n>a)", "${n}\\$1", "a", "a$1"),
    ],
)
def test_a_group_has_as_many_digits_as_there_are_groups(regex, replacement, topic, expected):
    pattern = java_pattern(regex)
    assert pattern.sub(java_replacement(replacement, pattern), topic, count=1) == expected


@pytest.mark.parametrize(
    ("text", "whole", "not_whole"),
    [
        (r"[a\[b]+", "a[b", "a&b"),
        (r"\[[ab]]", "[a]", "a"),
        ("[a||b]+", "a|b", "a-b"),
        ("[a~~b]+", "a~b", "a-b"),
        (r"\Q[[a]]\E", "[[a]]", "a"),
        (r"[\p{Digit}x]+", "1x", "y"),
    ],
)
def test_a_set_has_the_members_that_java_gives_it(text, whole, not_whole):
    assert java_pattern(text).fullmatch(whole)
    assert not java_pattern(text).fullmatch(not_whole)


@pytest.mark.parametrize("text", ["[[]]", "[^a[bc]]", "[a-z&&b]", r"x[\w[.]]"])
def test_sets_of_sets_are_refused_each_time(text):
    for _ in range(2):
        with pytest.raises(ValueError, match="as one set"):
            java_pattern(text)
