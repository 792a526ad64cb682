"""Rules of a profile: which table is where, what it and its columns are called, how it is kept and divided."""

import pytest

from waltap.base.files.properties import StorageProperties
from waltap.base.files.store import FileStore
from waltap.errors import ConfigurationError
from waltap_sinks.changelog.manifest import ColumnEntry
from waltap_spark.config.column_names import ColumnNames, checked_renames
from waltap_spark.config.shared_targets import (
    SharedShapes,
    TargetMappings,
    checked_places,
    require_place,
    sharers,
    union_columns,
)
from waltap_spark.config.targets import (
    FileLayout,
    NameClaims,
    PartitionField,
    checked_divisions,
    checked_names,
    named,
)
from waltap_spark.driver.settings import (
    GIVEN,
    apply_options,
    packed_settings,
    properties_of,
    taken_settings,
)
from waltap_spark.errors import LayoutUnfit, NamesClash, NameTaken, SourcesDiffer
from waltap_spark.formats.choice import FormatChoice
from waltap_spark.planning.plan import SegmentGroup
from waltap_spark.plugin import _describe_table
from waltap_spark.state.modes import (
    ModeRules,
    TableMode,
    unfit,
)
from waltap_spark.state.output import (
    SparkOutput,
    StoredTable,
    TableState,
    TargetMapping,
    TargetTable,
    address,
)

INT, LONG, TEXT = '"integer"', '"long"', '"string"'
PLACES = (r"t_(\w+)\.(.*):all.$2@$1", r"shard\d\.(orders):all.$1")

# --- what a profile may say -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("checked", "rules"),
    [
        (checked_renames, "a :b a: (:b a:$1"),
        (checked_places, "orders a:b a:b.c@ :b.c a:b.c.d a:$1.c (:b.c"),
        (checked_names, r"orders public\.a: :b a:b.c.d a:b. a:$1 (:b"),
    ],
)
def test_a_rule_that_gives_no_name_is_refused(checked, rules):
    for rule in rules.split():
        with pytest.raises(ValueError, match=r"."):
            checked([rule])


@pytest.mark.parametrize(
    ("pair", "reported"),
    [
        ("mode=scd3", "scd3"),
        ("mode=scd1,scd2", "both for all"),
        ("mode=public.(:scd2", "public.("),
        ("deletes=maybe", "hard, soft, kept"),
        ("history=no", "keep, none"),
        ("extra.columns=_sub", "_sub"),
        ("columns.names=upper", "columns.names"),
        ("source.column=_commit_LSN", "_commit_LSN"),
    ],
)
def test_what_is_no_rule_is_refused_before_anything_starts(pair, reported):
    with pytest.raises(ConfigurationError) as refused:
        properties_of([pair], "lake")
    assert reported in str(refused.value)


@pytest.mark.parametrize(
    ("table_format", "name", "value", "reported"),
    [
        ("delta", "partition.by", r"p\.a:days(at)", r"format\.partition\.by.*columns alone"),
        ("delta", "partition.by", "region", r"TABLE-REGEX:COLUMN"),
        ("iceberg", "cluster.by", r"p\.a:id,,b", r"TABLE-REGEX:COLUMN"),
        ("iceberg", "names", r"p\.a:b", r"format\.catalog, which is not given"),
        ("parquet", "partition.by", r"p\.a:region", r"format\.partition\.by"),
    ],
)
def test_what_a_format_cannot_do_is_refused_by_the_name_of_the_property(
    table_format, name, value, reported
):
    with pytest.raises(ConfigurationError, match=reported):
        _ = FormatChoice(table_format, {f"format.{name}": value}).factory


def test_a_profile_and_a_driver_say_the_same(monkeypatch):
    in_toml = {"mode": [r"public\.o{1,2}:scd2", "append"], "deletes": ["hard"]}
    pairs = ["deletes=soft", "extra.columns=_xid,_commit_ts"]
    pairs += ["history=public\\.o:keep,none", "columns.names=snake"]
    pairs += [r"columns.renames=.*\.(.*)__c:$1", "source.column=tenant"]
    pairs += [r"source.into=t_(\w+)\.(.*):all.$2@$1"]
    given = properties_of(pairs, "lake", in_toml)
    monkeypatch.setenv(GIVEN, packed_settings(given))
    again = properties_of((), "lake", taken_settings())
    assert again == given
    found = apply_options(again)
    assert found.modes.of("public.o") == TableMode(
        name="scd2", deletes="soft", extra=("_xid", "_commit_ts")
    )
    assert _describe_table(again, "public.o") == "scd2, deletes soft, with _xid, _commit_ts"
    assert _describe_table(again, "public.x") == "append"
    assert found.names.of("a.b", "Total__c") == "Total"
    assert found.names.of("a.b", "TotalSum") == "total_sum"
    assert found.places.of("t_a", "orders") == TargetMapping(
        schema="all", table="orders", source="a", column="tenant"
    )


# --- how tables are kept ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "key", "columns", "reported"),
    [
        (ModeRules(history=("none",)), "id", "id", ""),
        (ModeRules(history=("none",)), "", "id", "no key"),
        (ModeRules(history=("none",), deletes=("soft",)), "id", "id", "rows of the past"),
        (ModeRules(history=("none",), deletes=("kept",)), "id", "id", "rows of the past"),
        (ModeRules(deletes=("soft",)), "", "a", "no key"),
        (ModeRules(deletes=("soft",)), "id", "id _DELETED_at", "_DELETED_at"),
        (ModeRules(deletes=("soft",)), "id", "id", ""),
        (ModeRules(modes=("append",)), "", "a", ""),
    ],
)
def test_a_table_that_cannot_be_kept_so_is_reported_why(rules, key, columns, reported):
    found = unfit(rules.of("public.t"), tuple(key.split()), dict.fromkeys(columns.split(), ""))
    assert reported in found if reported else found == ""


# --- names of columns -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "snake"),
    [
        ("OrderID", "order_id"), ("orderId", "order_id"), ("HTTPServerName", "http_server_name"),
        ("already_snake", "already_snake"), ("Full Name", "full_name"), ("a-b", "a_b"),
        ("id2Name", "id2_name"), ("A", "a"), ("größeX", "größe_x"),
    ],
)  # fmt: skip
def test_snake_parts_words(name, snake):
    assert ColumnNames(("snake",)).of("s.t", name) == snake


def test_renames_come_before_styles_and_styles_are_by_table():
    names = ColumnNames((r"crm\..*:snake", "lower"), (r"crm\.(\w+)\.(.*)__c:$2_of_$1",))
    assert names.of("crm.orders", "Total__c") == "Total_of_orders"
    assert names.of("crm.orders", "OrderID") == "order_id"
    assert names.of("public.orders", "OrderID") == "orderid"
    assert names.of("t1.orders", "OrderID", ruled_as="crm.orders") == "order_id"
    assert ColumnNames().of("a.b", "OrderID") == "OrderID"


def group(*names: str) -> SegmentGroup:
    entries = tuple(ColumnEntry(name=each, type="text", arrow="string") for each in names)
    return SegmentGroup("f", 1, (names[0],), entries, oid=1, unchanged=dict.fromkeys(names[1:]))


def test_a_group_has_new_names_and_a_schema_of_its_own_once():
    found, alike, names = group("OrderID", "note"), group("order_id"), ColumnNames(("snake",))
    for each in (found, found, alike):
        names.name(each, "s.t")
    assert found.called == {"OrderID": "order_id"}
    assert found.key == ("order_id",)
    assert [each.name for each in found.columns] == ["order_id", "note"]
    assert found.fingerprint.startswith("f-")
    assert (alike.called, alike.fingerprint) == ({}, "f")


@pytest.mark.parametrize("second", ["A", "_Op", "_Valid_To"])
def test_names_that_two_would_have_are_refused(second):
    names = ColumnNames(("lower",))
    with pytest.raises(NamesClash, match=r"WT-5259"):
        names.name(group("a", second), "s.t")
    names.name(group("a", "_SOURCE"), "s.t")  # reserved where sources share a target alone


# --- names of tables --------------------------------------------------------------------------------


def test_a_table_is_called_by_the_first_rule_that_matches_its_name_as_it_is_written():
    rules = (r"public\.(.*)_changes:$1_log", r"crm\.Orders:raw.orders_upper", r"odd\..*:$0")
    rules += (r"sub\.(\w+)_x|sub\.other:raw.$1",)
    for schema, table, expected in (
        ("public", "orders_changes", ("public", "orders_log")),
        ("crm", "Orders", ("raw", "orders_upper")),
        ("crm", "orders", ("crm", "orders")),
        ("odd", "t", ("odd", "t")),
        ("sub", "orders_x", ("raw", "orders")),
    ):
        assert named(rules, schema, table) == expected
    with pytest.raises(LayoutUnfit, match=r"gives sub\.other no name"):
        named(rules, "sub", "other")


def holding(name: str, *targets: str) -> TableState:
    schema, _, table = name.partition(".")
    stored_table = StoredTable(targets={str(n): TargetTable(at=at) for n, at in enumerate(targets)})
    return TableState(schema=schema, table=table, stored_table=stored_table)


def test_a_name_is_one_tables_and_all_of_a_tables_names_are_taken_or_none():
    tables = {"p.a": holding("p.a", "c.p.a", "c.p.a_changes")}
    claims = NameClaims(lambda: tables)
    claims.take("p.a", ["c.p.a", "c.p.a_changes"], is_case_sensitive=True)
    with pytest.raises(NameTaken, match=r"p\.a's already") as reported:
        claims.take("p.a_changes", ["c.p.x", "c.p.a_changes"], is_case_sensitive=True)
    assert r"format.names = p\.a_changes:NAME" in str(reported.value)
    claims.take("p.b", ["c.p.x"], is_case_sensitive=True)
    claims.take("p.A", ["c.p.A"], is_case_sensitive=True)
    with pytest.raises(NameTaken, match=r"take for c\.p\.x"):
        claims.take("p.X", ["c.p.X"], is_case_sensitive=False)
    claims.release("p.b")
    claims.take("p.X", ["c.p.X"], is_case_sensitive=False)


# --- one table of several sources -------------------------------------------------------------------


def source(schema: str, **columns: str) -> TableState:
    place = TargetMappings(PLACES).of(schema, "orders")
    return TableState(schema=schema, table="orders", columns=columns, place=place)


@pytest.mark.parametrize(
    ("rules", "schema", "table", "place"),
    [
        (PLACES, "t_acme", "orders", ("all", "orders", "acme")),
        (PLACES, "shard7", "orders", ("all", "orders", "shard7")),
        (PLACES, "T_acme", "orders", None),
        ((r"t\.a@b:all.c",), "t", "a@b", ("all", "c", "t")),
        ((r"(.*)\.(\w+):$1.$2@$2",), "a.b", "orders", ("a.b", "orders", "orders")),
        ((r"(.*)\.(\w+):all\.$2",), "t", "orders", ("all", "orders", "t")),
    ],
)
def test_the_first_rule_that_matches_says_where_a_table_is_and_which_source(
    rules, schema, table, place
):
    checked_places([*rules])
    found = TargetMappings(rules).of(schema, table)
    assert (found and (found.schema, found.table, found.source)) == place


def test_a_type_that_does_not_fit_with_the_others_stops_that_source_alone():
    first, second = source("t_a", id=INT, n=INT), source("t_b", id=LONG, more=TEXT)
    assert union_columns([first, second]) == {"id": LONG, "n": INT, "more": TEXT}
    assert [each.name for each in sharers([second, first])["all.orders"]] == [
        "t_a.orders", "t_b.orders",
    ]  # fmt: skip
    shapes = SharedShapes({first.name: first})
    for fits in (second, source("t_c", id=INT, n=LONG)):
        shapes.required(fits)
    own = TableState(schema="all", table="orders", columns={"id": INT})
    taken = TableState(schema="x", table="y", columns={"id": INT}, place=first.place)
    alone = SharedShapes({"all.orders": own})
    for known, table, reported in (
        (
            shapes,
            source("t_c", id=INT, n=TEXT),
            r"column n of t_c\.orders.* is string, and integer",
        ),
        (shapes, taken, r"both be source a of all\.orders"),
        (shapes, own, r"all\.orders is called as the target"),
        (alone, first, r"which is a table by itself"),
    ):
        with pytest.raises(SourcesDiffer, match=reported):
            known.required(table)


def test_a_column_that_every_source_dropped_comes_back_with_any_type():
    with_n = [source(schema, id=INT, n=INT) for schema in ("t_a", "t_b")]
    shapes = SharedShapes({each.name: each for each in with_n})
    for schema, kind, fits in (
        ("t_a", None, True),
        ("t_a", TEXT, False),
        ("t_b", None, True),
        ("t_a", TEXT, True),
        ("t_b", INT, False),
        ("t_a", '"date"', True),
        ("t_b", TEXT, False),
    ):
        table = source(schema, id=INT, **({"n": kind} if kind else {}))
        if fits:
            shapes.required(table)
            continue
        with pytest.raises(SourcesDiffer, match=rf"column n of {schema}\.orders"):
            shapes.required(table)


@pytest.mark.parametrize("into", ["all.$2@$1", "all.$1", "$1.$2"])
def test_a_group_that_matches_nothing_gives_no_name(into):
    places = TargetMappings((rf"t(\d)?\.(.*):{into}",))
    table = TableState(schema="t1", table="orders", place=places.of("t1", "orders"))
    require_place(table, places, ["id"])
    table = TableState(schema="t", table="orders", place=places.of("t", "orders"))
    with pytest.raises(SourcesDiffer, match=r"source\.into.* t\.orders no name"):
        require_place(table, places, ["id"])


def test_a_place_is_given_once_and_its_column_is_nobody_elses():
    places = TargetMappings(PLACES)
    require_place(source("t_a"), places, ["id"])
    with pytest.raises(SourcesDiffer, match=r"source a of all\.orders.*by itself") as refused:
        require_place(source("t_a"), TargetMappings(), ["id"])
    remedy = "restore the rule that made the target (source.into, source.column)"
    assert remedy in str(refused.value.advice())
    with pytest.raises(SourcesDiffer, match=r"column _Source of t_a\.orders"):
        require_place(source("t_a"), places, ["id", "_Source"])


# --- where files are --------------------------------------------------------------------------------


def test_divisions_are_columns_or_transforms_of_them():
    rules = r"p\.a:region,days(we ird), bucket(16, id);.*/changes:_op"
    checked_divisions(rules, transforms=True)
    layout = FileLayout.of("p.a", rules, r"p\..*:region,id")
    assert layout.partition == (
        PartitionField("region"),
        PartitionField("we ird", "days"),
        PartitionField("id", "bucket", 16),
    )
    assert [each.sql for each in layout.partition] == [
        "`region`", "days(`we ird`)", "bucket(16, `id`)",
    ]  # fmt: skip
    assert layout.cluster == ("region", "id")
    assert FileLayout.of("p.a/changes", rules, "").partition == (PartitionField("_op"),)
    assert FileLayout.of("p.b", rules, "") == FileLayout()
    layout.require("p.a", ["region", "we ird", "id", "more"])
    with pytest.raises(LayoutUnfit, match=r"names we ird, which it does not have"):
        layout.require("p.a", ["region", "id"])


def test_files_are_at_the_addresses_that_spark_knows(tmp_path, monkeypatch):
    given = {"storage.endpoint": "http://127.0.0.1:9", "storage.region": "us-east-1"}
    nowhere = StorageProperties.model_validate(given)
    for place, found in (
        *((f"{scheme}://lake/shop", "s3a://lake/shop") for scheme in ("s3", "s3a", "s3n", "S3")),
        ("gs://lake/shop", "gs://lake/shop"),
        (str(tmp_path), f"file://{tmp_path}"),
        (f"file://{tmp_path}", f"file://{tmp_path}"),
    ):
        assert address(FileStore(place, nowhere), "a=b/c.parquet") == f"{found}/a=b/c.parquet"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_REGION", "x")
    assert SparkOutput("s3://lake/shop").uri("changelog") == "s3a://lake/shop/changelog"
