"""Transforms and predicates of a profile: names, order, and every way to get them wrong."""

import pytest

from waltap.config.layers import read_debezium, read_tables
from waltap.config.resolve import Survey, resolve, survey
from waltap.host import Host

CONNECTOR = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "database.hostname": "h",
    "database.user": "u",
    "database.password": "p",
    "database.dbname": "d",
    "topic.prefix": "s",
    "waltap.sink.type": "jsonl",
    "waltap.sink.path": "out",
}
ROUTER = "org.apache.kafka.connect.transforms.RegexRouter"
TOPIC_NAME = "org.apache.kafka.connect.transforms.predicates.TopicNameMatches"


def found(**more: str) -> Survey:
    given = {name.replace("__", "."): value for name, value in more.items()}
    return survey(read_debezium(CONNECTOR | given), Host())


def told(**more: str) -> str:
    return "\n".join(map(str, found(**more).problems))


def routed(**more: str) -> dict[str, str]:
    given = {"transforms": "a", "transforms__a__type": ROUTER}
    return given | {"transforms__a__regex": "x", "transforms__a__replacement": "y"} | more


def test_a_connectors_transforms_are_resolved_in_their_order_with_predicates() -> None:
    config = {
        "transforms": "drop, route",
        "transforms.drop.type": ROUTER,
        "transforms.drop.regex": "x",
        "transforms.drop.replacement": "y",
        "transforms.route.type": "RegexRouter",
        "transforms.route.regex": "(.*)",
        "transforms.route.replacement": "z.$1",
        "transforms.route.predicate": "mine",
        "transforms.route.negate": "TRUE",
        "predicates": "mine,dead",
        "predicates.mine.type": TOPIC_NAME,
        "predicates.mine.pattern": "s\\..*",
        "predicates.dead.type": "RecordIsTombstone",
    }
    first, second = resolve(read_debezium(CONNECTOR | config), Host()).transforms
    assert (first.label, first.predicate, first.negate) == ("drop (regex-router)", None, False)
    assert (second.label, second.negate) == ("route (regex-router)", True)
    assert second.predicate is not None
    assert second.predicate.spec.name == "TopicNameMatches"
    assert second.properties.replacement == "z.$1"


def test_a_profile_has_tables_of_transforms_and_predicates() -> None:
    tables = {
        "source": {"type": "postgres", "database.dbname": "d"},
        "sink": {"type": "null"},
        "transforms": [
            {"type": "filter", "tables": "public.x"},
            {
                "type": "regex-router",
                "regex": "a",
                "replacement": "b",
                "predicate": "p",
                "negate": True,
            },
        ],
        "predicates": {"p": {"type": "HasHeaderKey", "name": "h"}},
    }
    first, second = resolve(read_tables(tables), Host()).transforms
    assert first.predicate is None
    assert second.predicate is not None
    assert (second.predicate.properties.name, second.negate) == ("h", True)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            routed(transforms__a__type=ROUTER.replace("Regex", "Regx")),
            f"did you mean {ROUTER}?",
        ),
        (routed(transforms__a__type="a.b.C"), "allowed: "),
        (routed(transforms__a__predicate="p"), "no predicate has this name"),
        (
            routed(
                transforms__a__predicate="dea",
                predicates="dead",
                predicates__dead__type="RecordIsTombstone",
            ),
            "did you mean transforms.a.dead?",
        ),
        (routed(transforms__a__negate="true"), "needs transforms.a.predicate"),
        (routed(transforms__a__negate="maybe"), "is no truth value"),
        (routed(transforms__a__regex="("), "not a regular expression"),
        (routed(transforms__a__replacement="$1"), "not a replacement"),
        (routed(transforms="a,a"), "names a twice"),
        (routed(predicates="p"), "predicates.p.type"),
        (routed(predicates="p", predicates__p__type="TopicNameMatch"), "TopicNameMatches"),
        (
            routed(predicates="p", predicates__p__type="HasHeaderKey", predicates__p__nme="x"),
            "predicates.p.nme",
        ),
        (
            routed(
                predicates="p", predicates__p__type="TopicNameMatches", predicates__p__pattern="("
            ),
            "not a regular expression",
        ),
        (
            {
                "transforms": "f",
                "transforms__f__type": "filter",
                "transforms__f__predicate": "m:f",
                "transforms__f__tables": "t",
            },
            "write transforms.f.function",
        ),
        (
            {
                "transforms": "r",
                "transforms__r__type": "route",
                "transforms__r__regex": "x",
                "transforms__r__replacement": "y",
                "transforms__r__predicate": "p",
            },
            "predicates look at records, and route works on changes",
        ),
        (
            routed(transforms="a,f", transforms__f__type="fields", transforms__f__exclude="x"),
            "stands after a (regex-router), which works on records",
        ),
    ],
)
def test_what_is_wrong_is_named(more: dict[str, str], expected: str) -> None:
    assert expected in told(**more)


def test_an_unknown_class_lists_all_there_are() -> None:
    text = told(transforms="a", transforms__a__type="a.b.C")
    assert "regex-router" in text
    assert "filter" in text


UNWRAP = "io.debezium.transforms.ExtractNewRecordState"


def unwrap(type_: str = UNWRAP, **more: str) -> dict[str, str]:
    own = {f"transforms.unwrap.{name.replace('__', '.')}": v for name, v in more.items()}
    return {"transforms": "unwrap", "transforms.unwrap.type": type_, **own}


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        ({}, "tombstone"),
        ({"drop__tombstones": "true"}, "drop"),
        ({"drop__tombstones": "false"}, "tombstone"),
        ({"delete__handling__mode": "rewrite"}, "rewrite"),
        (
            {"delete__handling__mode": "rewrite", "drop__tombstones": "false"},
            "rewrite-with-tombstone",
        ),
        ({"delete__handling__mode": "none"}, "tombstone"),
        (
            {"drop__tombstones": "true", "delete__tombstone__handling__mode": "rewrite"},
            "rewrite",
        ),
    ],
)
@pytest.mark.parametrize("type_", [UNWRAP, "io.debezium.transforms.UnwrapFromEnvelope"])
def test_older_names_of_unwrap_mean_what_they_meant(
    given: dict[str, str], mode: str, type_: str
) -> None:
    (use,) = resolve(read_debezium(CONNECTOR | unwrap(type_, **given)), Host()).transforms
    assert use.properties.mode == mode


def test_older_names_of_added_members_are_added_members() -> None:
    given = unwrap(operation__header="true", add__source__fields="table,lsn", add__fields="op")
    (use,) = resolve(read_debezium(CONNECTOR | given), Host()).transforms
    assert use.properties.headers == ("op",)
    assert use.properties.fields == ("op", "source.table:table", "source.lsn:lsn")


def test_what_a_transform_does_not_know_is_a_warning_in_a_connectors_file() -> None:
    one = found(**unwrap(add__feilds="op", whatever="1"))
    assert not one.problems
    assert any("add.feilds is not known" in each and "add.fields?" in each for each in one.warnings)
    assert any("transforms.unwrap.whatever is not known" in each for each in one.warnings)
