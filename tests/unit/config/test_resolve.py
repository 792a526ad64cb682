"""From settings to components: each gets what it declared, and every mistake is named at once."""

import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from tests.harness.examined import connector_file, examine

import waltap.plugin
from waltap.base.plugin_errors import DuplicateName
from waltap.base.property import CommaList, Properties, declarations, declare, declare_family
from waltap.changes.decode.decoder import DecoderCapabilities
from waltap.cli.reference.properties import components
from waltap.config.layers import RawProfile, read_debezium, read_tables
from waltap.config.namespace import ValidationResult
from waltap.config.pipeline_properties import EngineProperties
from waltap.config.profile import Profile, changes
from waltap.config.resolve import resolve, survey
from waltap.errors import ConfigurationError
from waltap.plugins.hookspecs import hookimpl
from waltap.plugins.host import Host, PluginInfo
from waltap.ports.specs import (
    ConnectorSpec,
    DecoderSpec,
    SinkSpec,
    SnapshotterSpec,
    Spec,
    TransformSpec,
)

CLASS = "io.debezium.connector.toy.ToyConnector"


class ToyProperties(Properties):
    """A database for tests."""

    hostname: str = declare("database.hostname", summary="Host.")
    drop: bool = declare("slot.drop.on.stop", default=False, summary="Drop.")
    port: int = declare("database.port", default=5432, ge=1, le=65535, summary="Port.")
    password: str | None = declare("database.password", default=None, secret=True, summary="Word.")
    slot: str = declare(
        "slot.name",
        default="debezium",
        pipeline_name=True,
        summary="Slot.",
        aliases=("slot",),
        deprecated={"slot.old": "slot.name"},
    )
    mode: Literal["all_tables", "filtered"] = declare(
        "publication.autocreate.mode",
        default="all_tables",
        profile_default="filtered",
        summary="Publication.",
    )
    libpq: dict[str, str] = declare_family("driver.NAME", pattern=r"driver\..+", summary="Libpq.")
    flush: str = declare("lsn.flush.mode", default="connector", summary="Who moves the slot.")
    mismatch: str = declare("offset.mismatch.strategy", default="no_validation", summary="Truth.")
    tables: CommaList = declare("toy.tables", default=(), summary="Tables.")


class DecoderProperties(Properties):
    """A decoder's."""

    chunks: bool = declare("toy.chunks", default=False, summary="Chunks.")


class SnapshotProperties(Properties):
    """A snapshot mode's."""

    flag: bool = declare("toy.snapshot.flag", default=False, summary="Flag.")


class SinkProperties(Properties):
    """A sink's."""

    path: str = declare("path", summary="Where to.")
    size: int = declare("size", default=1, summary="How large.")


class MaskProperties(Properties):
    """A transform's."""

    columns: CommaList = declare("columns", summary="Columns to mask.")


def made(kind: type[Spec], name: str, model: type[Properties] | None = None, **more: Any) -> Any:
    return kind(name=name, summary="s", properties=model, factory=print, **more)  # type: ignore[call-arg]


class Toy:
    """A plugin with one of each kind."""

    @hookimpl
    def register_connectors(self) -> list[ConnectorSpec]:
        return [made(ConnectorSpec, "toy", ToyProperties, classes=(CLASS,))]

    @hookimpl
    def register_decoders(self) -> list[DecoderSpec]:
        capable = {"capabilities": DecoderCapabilities(), "output_plugin": "x"}
        forced = {"forced_options": {"toy.chunks": True}}
        return [
            made(DecoderSpec, "pgoutput", DecoderProperties, **capable),
            made(DecoderSpec, "decoderbufs", **capable),
            made(DecoderSpec, "chunked", DecoderProperties, **capable, **forced),
        ]

    @hookimpl
    def register_snapshotters(self) -> list[SnapshotterSpec]:
        return [
            made(SnapshotterSpec, "initial"),
            made(SnapshotterSpec, "no_data", SnapshotProperties),
            made(SnapshotterSpec, "mine"),
        ]

    @hookimpl
    def register_sinks(self) -> list[SinkSpec]:
        return [made(SinkSpec, "files", SinkProperties, aliases=("file",)), made(SinkSpec, "null")]

    @hookimpl
    def register_transforms(self) -> list[TransformSpec]:
        return [made(TransformSpec, "mask", MaskProperties, aliases=("org.example.Mask",))]


@pytest.fixture
def host() -> Host:
    made_here = Host(discover=False)
    made_here.register(
        SimpleNamespace(
            register_formats=waltap.plugin.register_formats,
            register_topic_naming=waltap.plugin.register_topic_naming,
            register_offset_stores=waltap.plugin.register_offset_stores,
        ),
        "framework",
    )
    made_here.register(Toy(), "toy")
    return made_here


def toml(source: dict[str, Any] | None = None, **sections: Any) -> RawProfile:
    """Return a complete profile of ours, with changes; a section given as None is left out."""
    tables: dict[str, Any] = {
        "source": {"type": "toy", "database.hostname": "here", **(source or {})},
        "sink": {"type": "files", "path": "x"},
        **sections,
    }
    return read_tables({k: v for k, v in tables.items() if v is not None}, "shop.toml")


def debezium(**more: str) -> RawProfile:
    """Return a complete connector file of Debezium's, with changes; __ stands for a dot."""
    values = {
        "connector.class": CLASS,
        "topic.prefix": "t",
        "database.hostname": "here",
        "waltap.sink.type": "null",
        **{name.replace("__", "."): value for name, value in more.items()},
    }
    return read_debezium(values, "shop.properties")


def problems(raw: RawProfile, host: Host, **arguments: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as error:
        examine(raw, host, **arguments)
    assert error.value.code == "WT-1001"
    assert f"{len(error.value.problems)} problem" in str(error.value)
    return [str(problem) for problem in error.value.problems]


def explained(resolution: ValidationResult) -> dict[str, tuple[str, str]]:
    return {e.name: (e.value, e.origin) for e in resolution.explained}


# --- who gets what ---------------------------------------------------------------------------------


def test_each_component_gets_what_it_declared_and_nothing_else(host):
    profile = resolve(
        toml(
            {
                "database.port": 6000,
                "toy.tables": ["a", "b"],
                "toy.chunks": True,
                "snapshot.mode": "no_data",
                "toy.snapshot.flag": "yes",
                "table.include.list": r"public\.a,public\.b",
                "driver.application_name": "me",
            },
            engine={"max.batch.size": 7},
            format={"type": "json", "value.converter.schemas.enable": True},
            offsets={"type": "file", "waltap.offset.file": "o.json"},
            sink={"type": "file", "path": "p", "size": "3"},
            transforms=[{"type": "mask", "columns": "a, b"}],
            labels={"team": "data"},
        ),
        host,
    )
    connector = profile.connector.properties
    assert isinstance(connector, ToyProperties)
    assert (connector.port, connector.tables) == (6000, ("a", "b"))
    assert connector.libpq == {"driver.application_name": "me"}
    assert profile.decoder.properties == DecoderProperties(chunks=True)
    assert profile.snapshotter.properties == SnapshotProperties(flag=True)
    assert profile.sink.spec.name == "files"
    assert profile.sink.properties == SinkProperties(path="p", size=3)
    assert [t.properties for t in profile.transforms] == [MaskProperties(columns=("a", "b"))]
    assert profile.capture.table_include == (r"public\.a", r"public\.b")
    assert profile.engine.batch_events == 7
    assert getattr(profile.format.properties, "value_schemas") is True
    assert getattr(profile.offset_store.properties, "path") == Path.cwd() / "o.json"
    assert profile.labels == {"team": "data"}
    assert not profile.debezium


def test_defaults_are_ours_in_a_profile_and_debeziums_in_a_connector_file(host):
    ours, theirs = resolve(toml(), host), resolve(debezium(), host)

    def chosen(profile: Any) -> tuple[str, str, str]:
        properties = profile.connector.properties
        return profile.decoder.spec.name, properties.slot, properties.mode

    assert chosen(ours) == ("pgoutput", "shop", "filtered")
    assert chosen(theirs) == ("decoderbufs", "debezium", "all_tables")
    assert theirs.debezium


@pytest.mark.parametrize("name", ["Shop", "my-shop", "my.shop", "größe", "x" * 200, "1", "-"])
def test_a_pipelines_name_becomes_an_identifier_that_no_other_name_gives(name, host):
    distinct = {name, name.lower(), name + "-", name.replace("-", "_"), name.replace("-", ".")}
    found = {resolve(toml(name=each), host).connector.properties.slot for each in distinct}  # type: ignore[union-attr]
    assert all(re.fullmatch(r"[a-z0-9_]{1,54}", slot) for slot in found)
    assert len(found) == len(distinct)


def test_an_alias_decoder_forces_its_options(host):
    found = examine(toml({"plugin.name": "chunked", "toy.chunks": False}), host)
    assert found.ignored == {"toy.chunks": "decoder chunked always has it as true"}
    profile = found.profile
    assert profile.decoder.properties == DecoderProperties(chunks=True)


def test_a_pipeline_has_a_name_and_a_topic_prefix(host, monkeypatch):
    monkeypatch.setenv("WALTAP_TEST_WORD", "word")
    for raw, name in (
        (toml(name="orders"), "orders"),
        (toml(), "shop"),  # of the file
        (debezium(), "t"),
        (debezium(slot__name="s1"), "t-s1"),
        (debezium(slot__name="${env:WALTAP_TEST_WORD}"), "t-word"),  # each value its own folder
        (debezium(name="c"), "c"),
        (debezium(name="my c/é"), "my_c-ac93daaa"),  # fit for a folder
    ):
        assert resolve(raw, host).name == name
    assert resolve(toml(), host).capture.topic_prefix == "shop"
    assert resolve(toml({"topic.prefix": "x"}), host).capture.topic_prefix == "x"


# --- sinks and overrides ---------------------------------------------------------------------------


def test_a_sink_argument_takes_the_place_of_the_profiles_sink(host):
    for argument, sink, path in (
        (None, "files", "x"),
        ("files:there", "files", "there"),
        ("files", "files", "x"),  # it keeps its properties
        ("null", "null", None),  # another drops them
        ("files:s3://b/c:d", "files", "s3://b/c:d"),
    ):
        found = resolve(toml(), host, sink=argument).sink
        assert (found.spec.name, getattr(found.properties, "path", None)) == (sink, path)


def test_overrides_win_choose_a_sink_and_have_a_prefix_for_its_properties(host):
    overrides = {"database.port": "7000", "sink.size": "5", "waltap.sink.path": "new"}
    resolution = examine(toml(), host, overrides=overrides)
    assert resolution.profile.sink.properties == SinkProperties(path="new", size=5)
    assert explained(resolution)["database.port"] == ("7000", "--set")
    chosen = resolve(toml(sink=None), host, overrides={"sink.type": "null"})
    assert chosen.sink.spec.name == "null"
    for raw in toml({"slot": "a"}), debezium(slot="a"):  # by another name of the property
        assert resolve(raw, host, overrides={"slot.name": "b"}).connector.properties.slot == "b"  # type: ignore[union-attr]
    names = "table.whitelist", "table.include.list"
    for given, argument in (names, names[::-1]):
        found = resolve(debezium(**{given: "a"}), host, overrides={argument: "b"})
        assert found.capture.table_include == ("b",)


# --- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sink.url", {"sink": {"type": "nats-jetstream", "url": "h:4222"}}),
        ("sinks[../../x].name", {"sinks": [{"type": "null", "name": "../../x"}]}),
        ("sink.stream", {"sink": {"type": "nats-jetstream", "url": "nats://h", "stream": "a b"}}),
        ("sink.address", {"sink": {"type": "redis", "address": "redis://h"}}),
        (
            "sink.table.name.format",
            {"sink": {"type": "delta", "path": "x", "table.name.format": "{x}{table}"}},
        ),
    ],
)
def test_a_pattern_is_one_of_the_whole_value(name, value):
    source = {"type": "postgres", "database.dbname": "d"}
    found = survey(read_tables({"source": source, **value}, "p.toml"), Host()).problems
    assert [problem.property for problem in found] == [name]
    if name == "sink.url":
        assert str(found[0]).endswith(", as nats://localhost:4222")


@pytest.mark.parametrize("share", [0.5, [0.5], "0.5"])
def test_a_list_may_be_one_number(share):
    source = {"type": "postgres", "database.dbname": "d"}
    tables = {"source": source, "engine": {"waltap.wal.warn.at": share}}
    assert resolve(read_tables(tables), Host(), sink="null").engine.wal_warn_at == (0.5,)


def test_no_property_of_a_pipeline_has_a_name_that_means_one_of_the_sink():
    """`--set` and a connector's file give such names to the sink."""
    of_all = [m for heading, _, m in components(Host()) if not heading.startswith("Sink")]
    names = {name for m in of_all for d in declarations(m) for name in {*d.names} - {*d.deprecated}}
    assert not [name for name in names if name.startswith(("sink.", "waltap.sink"))]


# --- mistakes --------------------------------------------------------------------------------------


def test_every_mistake_is_named_at_once(host):
    raw = toml(
        {
            "type": "toy",
            "database.port": 70000,
            "publication.autocreate.mode": "filterd",
            "databse.hostname": "x",
            "snapshot.mode": "initail",
            "time.precision.mode": "adaptve",
        },
        engine={"max.batch.size": 0, "no.such.thing": 1},
        sink={"type": "files", "pth": "x"},
        transforms=[{"columns": "a"}],
    )
    assert problems(raw, host) == [
        "snapshot.mode: no snapshot mode is called 'initail'; allowed: initial, mine, no_data; "
        "did you mean initial?",
        "time.precision.mode: is not one of its values (given: adaptve); allowed: adaptive, "
        "adaptive_time_microseconds, connect, isostring, microseconds, nanoseconds; "
        "did you mean adaptive?",
        "max.batch.size: input should be greater than or equal to 1 (given: 0); "
        "allowed: a whole number, at least 1",
        "database.port: input should be less than or equal to 65535 (given: 70000); "
        "allowed: a whole number, at least 1, at most 65535",
        "publication.autocreate.mode: is not one of its values (given: filterd); "
        "allowed: all_tables, filtered; did you mean filtered?",
        "sink.path: is required: Where to",
        "transforms[1].type: is missing",
        "databse.hostname: is not known (given: x); did you mean database.hostname?",
        "no.such.thing: is not known (given: 1)",
        "sink.pth: is not known (given: x); did you mean sink.path?",
    ]


AVRO = "io.confluent.connect.avro.AvroConverter"
ABSENT = [
    (
        read_tables({"source": {"type": "toy", "database.hostname": "here"}}),
        "sink.type: is missing: where should the changes go?; allowed: [sink] type = NAME, or "
        "--sink NAME:VALUE; names: files, null",
    ),
    (toml({"type": "toy", "path": "x"}), "path: is not known (given: x); did you mean sink.path?"),
    (
        toml({"type": "tyo"}),
        "source.type: no connector is called 'tyo'; allowed: toy; did you mean toy?",
    ),
    (
        read_tables({"sink": {"type": "null"}}),
        "source.type: is missing: which database is this?; allowed: toy",
    ),
    (
        debezium(connector__class="io.x.Y"),
        "connector.class ([source] type): no connector is called 'io.x.Y'; allowed: toy",
    ),
    (
        toml({"plugin.name": "pgoutptu"}),
        "plugin.name: no decoder is called 'pgoutptu'; allowed: chunked, decoderbufs, pgoutput; "
        "did you mean pgoutput?",
    ),
    (
        toml(format={"type": "avro"}),
        "format.type: no format is called 'avro'; allowed: json, simple-header",
    ),
    (
        toml({"topic.naming.strategy": "schema_regex"}),
        "topic.naming.strategy: topic.regex and topic.replacement are required by this strategy "
        "(given: schema_regex)",
    ),
    (
        debezium(value__converter=AVRO),
        f"value.converter ([format] type): no format is called '{AVRO}'; allowed: json, simple-header",
    ),
    (
        debezium(snapshot__query__mode="custom"),
        "snapshot.query.mode.custom.name: is missing: snapshot.query.mode is custom; "
        "allowed: a snapshot mode: initial, mine, no_data",
    ),
    (
        toml({"slot": "a", "slot.name": "b"}),
        "slot.name: is given again as slot, with another value (given: b)",
    ),
]


@pytest.mark.parametrize(("raw", "expected"), ABSENT, ids=lambda v: v if isinstance(v, str) else "")
def test_a_component_that_is_not_there_is_named(host, raw, expected):
    found = problems(raw, host)
    assert found[0] == expected
    assert all(" brings it" in text for text in found[1:])  # the distribution that has it


# --- Debezium's files ------------------------------------------------------------------------------


def test_an_old_name_warns_and_beside_the_new_one_it_must_agree(host, caplog):
    agreeing = debezium(database__server__name="t")
    assert resolve(agreeing, host).capture.topic_prefix == "t"
    assert problems(debezium(database__server__name="other"), host) == [
        "database.server.name: is the old name of topic.prefix, which is given too, with another "
        "value (given: other)"
    ]
    caplog.clear()
    with caplog.at_level(logging.WARNING, "waltap"):
        resolve(toml({"slot.old": "s"}), host)
    assert [record.getMessage() for record in caplog.records] == [
        "slot.old is an old name: write slot.name"
    ]


# --- secrets ---------------------------------------------------------------------------------------


def test_a_name_that_has_a_secret_of_another_profile_in_it_stays_a_plain_name(host):
    """One process may run many: what is stored of a slot has to be encodable, as nothing but str is."""
    examine(toml({"slot": "s", "database.password": "wal_of"}), host)
    resolution = examine(toml({"slot": "wal_of_shop"}), host)
    assert type(getattr(resolution.profile.connector.properties, "slot")) is str


@pytest.mark.parametrize(
    "source",
    [
        {"database.pasword": "geheim"},
        {"database.password": ["geheim"]},
        {"my.api-key": "geheim"},
        {"some.url": "http://ann:geheim@host/"},
        {"database.port": "${env:WALTAP_TEST_SECRET}"},
        {"max.batch.siz": "${env:WALTAP_TEST_SECRET}"},
        {"my.jaas.config": 'user="${env:USER_}" password="geheim"'},
        {"some.url": "http://${env:USER_}:geheim@host/"},
    ],
    ids=lambda source: next(iter(source)),
)
def test_a_secret_does_not_show_up_in_mistakes(host, monkeypatch, source):
    monkeypatch.setenv("WALTAP_TEST_SECRET", "geheim")
    (problem,) = problems(toml(source), host)
    assert "geheim" not in problem


def test_a_secret_in_an_address_is_not_explained():
    sink = {"type": "changelog", "path": "s3://key:geheim@bucket/x"}
    raw = read_tables({"source": {"type": "postgres", "database.dbname": "d"}, "sink": sink})
    assert explained(examine(raw, Host()))["sink.path"][0] == "s3://key:***@bucket/x"
    for address, shown in (
        ("postgresql://u:${env:USER_}@h/d", "postgresql://u:${env:USER_}@h/d"),
        ("postgresql://${env:USER_}:geheim@h/d", "postgresql://***:***@h/d"),
    ):
        found = survey(read_tables({"sink": {"type": "sql", "url": address}}), Host())
        assert [each.value for each in found.problems if each.property == "sink.url"] == [shown]


def test_placeholders_are_filled_in_wherever_they_are(host, monkeypatch):
    """Also entries of lists, types and labels. What only looks like one is pointed out."""
    monkeypatch.setenv("WALTAP_TEST_WORD", "files")
    word, absent = "${env:WALTAP_TEST_WORD}", "${env:WALTAP_TEST_ABSENT}"
    given = {"toy.tables": [f"public.{word}", "b"], "database.hostname": "${DB_HOST}"}
    raw = toml(given, sink={"type": word, "path": "x"}, labels={"pod": f"on {word}"})
    resolution = examine(raw, host)
    assert resolution.profile.connector.properties.tables == ("public.files", "b")
    assert resolution.profile.sink.spec.name == "files"
    assert resolution.profile.labels == {"pod": "on files"}
    assert explained(resolution)["toy.tables"][0] == f"public.{word},b"
    assert ["write ${env:DB_HOST}" in each for each in resolution.warnings] == [True]
    raw = toml({"toy.tables": ["a", absent]}, sink={"type": absent}, labels={"pod": absent})
    found = problems(raw, host)
    assert [problem.partition(":")[0] for problem in found] == [
        "sink.type",
        "toy.tables",
        "labels.pod",
    ]


# --- one report, in the user's own words -----------------------------------------------------------


CONNECT = "org.apache.kafka.connect.transforms."


@pytest.mark.parametrize(
    ("kind", "values", "between"),
    [
        ("TimestampConverter", {"format": "qqq"}, "q means nothing"),
        ("InsertField", {"offset.field": "o", "static.field": "s"}, "static.value is missing"),
    ],
    ids=["missing", "wrong"],
)
def test_a_property_hides_no_problem_between_others(kind, values, between):
    given = {f"transforms.t.{name}": value for name, value in values.items()}
    given |= {"transforms": "t", "transforms.t.type": f"{CONNECT}{kind}$Value"}
    of_one, across = problems(connector_file(given), Host(), sink="jsonl:x")
    assert (of_one.startswith("transforms.t."), between in across) == (True, True)


def test_two_plugins_with_one_name_are_one_problem_of_several(host):
    class Other:
        @hookimpl
        def register_sinks(self) -> list[SinkSpec]:
            return [made(SinkSpec, "files")]

    with pytest.raises(DuplicateName):
        host.register(Other(), "other")
    host._admit(PluginInfo("other", "acme", "1.0", "acme"), Other())  # as discovery does
    found = problems(toml({"databse.port": 1}), host)
    assert [text.partition(":")[0] for text in found] == ["sink.type", "databse.port"]
    assert "is contributed twice" in found[0]


# --- what differs between two profiles, and what of it a run takes -------------------------------------


URL = "key.converter.schema.registry.url"
AVRO_KEYS = {"key.converter": "avro", "value.converter": "json", URL: "http://a"}
HEADERS = {"header.converter": "simple-header"}


def postgres(sink: dict[str, Any] | None = None, **source: Any) -> Profile:
    given = {
        "type": "postgres",
        "database.hostname": "h",
        "database.dbname": "d",
        "database.user": "u",
        **source,
    }
    tables = {"name": "p", "source": given, "sink": sink or {"type": "jsonl", "path": "a.jsonl"}}
    return resolve(read_tables(tables), Host())


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        ({}, {}, []),
        ({}, {"database.password": "other"}, ["database.password"]),
        ({}, {"table.include.list": "public.a"}, ["table.include.list"]),
        ({}, {"waltap.wal.budget": "10GB"}, ["waltap.wal.budget"]),
        ({"sink": {"type": "null"}}, {}, ["sink.type", "sink.path"]),
        ({}, {"sink": {"type": "jsonl", "path": "b.jsonl"}}, ["sink.path"]),
        ({"driver.application_name": "x"}, {}, ["driver.application_name"]),
        (AVRO_KEYS, AVRO_KEYS | {URL: "http://b"}, [URL]),
        (HEADERS, HEADERS | {"header.converter": "json"}, ["header.converter.type"]),
    ],
    ids=str,
)
def test_what_differs_is_named(before, after, names):
    found = changes(postgres(**before), postgres(**after))
    assert set(names) <= set(found), found
    assert not [name for name in found if not name.startswith(("sink.", *names))]


def test_transforms_of_one_kind_are_compared_in_their_order():
    def profile(*excluded: str) -> Profile:
        transforms = [{"type": "fields", "exclude": each} for each in excluded]
        source = {"type": "postgres", "database.dbname": "d"}
        tables = {"source": source, "sink": {"type": "null"}, "transforms": transforms}
        return resolve(read_tables(tables), Host())

    first, second = (f"transforms[{number}].exclude" for number in (1, 2))
    assert list(changes(profile("a", "b"), profile("c", "b"))) == [first]
    assert list(changes(profile("a", "b"), profile("b", "a"))) == [first, second]


def test_only_the_engine_declares_such_properties():
    """A component keeps the values that it was made with; it would promise what nobody does."""
    for heading, _, model in components(Host()):
        if model is not EngineProperties:
            assert [d.name for d in declarations(model) if d.reloadable] == [], heading
