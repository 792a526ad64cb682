"""Transforms and predicates of a profile: names, order, and every way to get them wrong."""

import pytest
from tests.harness.examined import connector_file

from waltap.config.layers import RawProfile
from waltap.config.namespace import ValidationResult
from waltap.config.profile import TransformUse
from waltap.config.resolve import resolve, survey
from waltap.plugins.host import Host

HOST = Host()
CONNECT = "org.apache.kafka.connect.transforms"
ROUTER = f"{CONNECT}.RegexRouter"
UNWRAP = "io.debezium.transforms.ExtractNewRecordState"


def connector(text: str) -> RawProfile:
    given = f"waltap.sink.type=null {text}"
    return connector_file(dict(each.split("=", 1) for each in given.split()))  # type: ignore[misc]


def found(text: str) -> ValidationResult:
    return survey(connector(text), HOST)


def used(text: str) -> tuple[TransformUse, ...]:
    return tuple(resolve(connector(text), HOST).transforms)


def test_a_connectors_transforms_are_resolved_in_their_order_with_predicates():
    first, second = used(
        f"transforms=drop,route transforms.drop.type={ROUTER} transforms.drop.regex=x"
        " transforms.drop.replacement=y transforms.route.type=RegexRouter"
        " transforms.route.regex=(.*) transforms.route.replacement=z.$1"
        " transforms.route.predicate=mine transforms.route.negate=TRUE predicates=mine,dead"
        f" predicates.mine.type={CONNECT}.predicates.TopicNameMatches predicates.mine.pattern=s\\..*"
        " predicates.dead.type=RecordIsTombstone"
    )
    assert (first.label, first.predicate, first.negate) == ("drop (regex-router)", None, False)
    assert (second.label, second.negate) == ("route (regex-router)", True)
    assert second.predicate is not None
    assert second.predicate.spec.name == "TopicNameMatches"
    assert second.properties.replacement == "z.$1"


ROUTED = f"transforms=a transforms.a.type={ROUTER} transforms.a.regex=x transforms.a.replacement=y "
WRONG = [
    (f"{ROUTED}transforms.a.type={ROUTER.replace('Regex', 'Regx')}", f"did you mean {ROUTER}?"),
    (f"{ROUTED}transforms.a.type=a.b.C", "allowed: "),
    (f"{ROUTED}transforms.a.predicate=p", "no predicate has this name"),
    (
        f"{ROUTED}transforms.a.predicate=dea predicates=dead predicates.dead.type=RecordIsTombstone",
        "did you mean transforms.a.dead?",
    ),
    (f"{ROUTED}transforms.a.negate=true", "needs transforms.a.predicate"),
    (f"{ROUTED}transforms.a.negate=maybe", "is no truth value"),
    (f"{ROUTED}transforms.a.regex=(", "not a regular expression"),
    (f"{ROUTED}transforms.a.replacement=$1", "not a replacement"),
    (f"{ROUTED}transforms=a,a", "names a twice"),
    (f"{ROUTED}predicates=p", "predicates.p.type"),
    (f"{ROUTED}predicates=p predicates.p.type=TopicNameMatch", "TopicNameMatches"),
    (
        f"{ROUTED}predicates=p predicates.p.type=HasHeaderKey predicates.p.nme=x",
        "predicates.p.nme",
    ),
    (
        f"{ROUTED}predicates=p predicates.p.type=TopicNameMatches predicates.p.pattern=(",
        "not a regular expression",
    ),
    (
        "transforms=f transforms.f.type=filter transforms.f.predicate=m:f transforms.f.tables=t",
        "write transforms.f.function",
    ),
    (
        "transforms=r transforms.r.type=route transforms.r.regex=x transforms.r.replacement=y"
        " transforms.r.predicate=p",
        "predicates look at records, and route works on changes",
    ),
    (
        f"{ROUTED}transforms=a,f transforms.f.type=fields transforms.f.exclude=x",
        "comes after a (regex-router), which works on records",
    ),
    ("transforms=a transforms.a.type=a.b.C", "regex-router"),
    ("transforms=a transforms.a.type=a.b.C", "filter"),
]


@pytest.mark.parametrize(("given", "expected"), WRONG)
def test_what_is_wrong_is_named(given, expected):
    assert expected in "\n".join(map(str, found(given).problems))


@pytest.mark.parametrize("type_", [UNWRAP, "io.debezium.transforms.UnwrapFromEnvelope"])
def test_older_names_of_unwrap_mean_what_they_meant(type_):
    begins = f"transforms=u transforms.u.type={type_}"
    drop, handling = "transforms.u.drop.tombstones", "transforms.u.delete.handling.mode"
    for given, mode in (
        ("", "tombstone"),
        (f"{drop}=true", "drop"),
        (f"{drop}=false", "tombstone"),
        (f"{handling}=rewrite", "rewrite"),
        (f"{handling}=rewrite {drop}=false", "rewrite-with-tombstone"),
        (f"{handling}=none", "tombstone"),
        (f"{drop}=true transforms.u.delete.tombstone.handling.mode=rewrite", "rewrite"),
    ):
        (use,) = used(f"{begins} {given}")
        assert use.properties.mode == mode, given
        warned = [each for each in found(f"{begins} {given}").warnings if "old name" in each]
        older = {name for name in (drop, handling) if f"{name}=" in given}
        assert {each.split()[0] for each in warned} == older, given
        assert all("write delete.tombstone.handling.mode" in each for each in warned)
    (use,) = used(
        f"{begins} transforms.u.operation.header=true transforms.u.add.source.fields=table,lsn"
        " transforms.u.add.fields=op"
    )
    assert use.properties.headers == ("op",)
    assert use.properties.fields == ("op", "source.table:table", "source.lsn:lsn")


def test_what_a_transform_does_not_know_is_a_warning_in_a_connectors_file():
    one = found(
        f"transforms=u transforms.u.type={UNWRAP} transforms.u.add.feilds=op transforms.u.whatever=1"
    )
    assert not one.problems
    assert any("add.feilds is not known" in each and "add.fields?" in each for each in one.warnings)
    assert any("transforms.u.whatever is not known" in each for each in one.warnings)
