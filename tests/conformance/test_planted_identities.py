"""Replica identities, snapshot modes and types with one planted fault each: their suites find every one."""

import itertools
from dataclasses import replace
from typing import Any

import msgspec
from tests.harness.planted_faults import Faults, FindsFaults

import waltap_postgres.plugin
from waltap.base.text import sql_name
from waltap.changes.decode.message import OldTuple
from waltap.changes.decode.relation import Column, Relation, TypeKind
from waltap.changes.decode.replica_identity import IdentityWarning, RowImages
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED
from waltap.changes.mapping import (
    ColumnMapping,
    ConnectKind,
    DataType,
    Field,
    Schema,
    TypeSample,
    TypeSpec,
    converted,
    simple_type,
    types_named,
)
from waltap.ports.snapshot.snapshotter import SnapshotFacts, Snapshotter
from waltap.ports.specs import SnapshotterSpec
from waltap_postgres.identity import DefaultIdentity, FullIdentity, NothingIdentity
from waltap_testing import TypeRig, TypeSuite
from waltap_testing.suites.identity import IdentityRig, IdentitySuite
from waltap_testing.suites.snapshotter import SnapshotterRig, SnapshotterSuite

SPECS = {spec.name: spec for spec in waltap_postgres.plugin.register_replica_identities()}

# --- identities ---

IDENTITIES = Faults()
IDENTITIES.right(FullIdentity)
IDENTITIES.right(DefaultIdentity)


def images(method, base=DefaultIdentity, **fields):
    """Return members with one in the place of ``method``: ``fields``, each made of images and message, are its own."""

    def altered(self, message):
        found = getattr(base, method)(self, message)
        for name, make in fields.items() if found is not None else ():
            setattr(found, name, make(found, message))
        return found

    return {"base": base, method: altered}


def folded(marker, row):
    return row and tuple(None if value is marker else value for value in row)


SAYS_NOTHING = "test_before_says_nothing_the_server_did_not"
FILLS = "test_unchanged_is_a_value_of_before_or_stays_unchanged"
IDENTIFIES = "test_a_row_is_identified_by_columns_that_there_are"
for _name, _promise, _members in (
    ("FoldsAbsentIntoNull", SAYS_NOTHING, images("update", before=lambda i, _: folded(ABSENT, i.before))),
    ("FoldsUnchangedIntoNull", FILLS, images("update", after=lambda i, _: folded(UNCHANGED, i.after))),
    ("ForgetsToFillUnchanged", FILLS, images("update", FullIdentity, after=lambda _, m: m.new)),
    ("MissesKeyChanges", "test_a_changed_key_is_seen_where_it_can_be", images("update", old_key=lambda *_: None)),
    ("InventsBefore", SAYS_NOTHING, images("update", before=lambda i, m: i.before or m.new)),
    ("DropsDeletes", "test_a_delete_is_dropped_only_without_old_tuple", {"delete": lambda *_: None}),
    ("KeepsOnlyTheKeyOfAFullRow", "test_before_is_there_when_the_whole_row_was_sent", images("update", FullIdentity, before=lambda _, m: (m.old[0], ABSENT, ABSENT))),
    ("GivesShortImages", "test_images_are_as_long_as_the_relation", images("delete", before=lambda i, _: i.before[:1])),
    ("HasAnAfterOfADelete", "test_a_delete_has_no_after_and_its_key", images("delete", after=lambda i, _: i.before)),
    ("WarnsWithoutRemedy", "test_warnings_say_what_mends_them", {"warnings": lambda relation: [IdentityWarning(relation.name, "something is wrong", " ")]}),
    ("IdentifiesByNames", IDENTIFIES, {"identifying": ("id",)}),
    ("IdentifiesByAnotherColumn", IDENTIFIES, {"identifying": (1,)}),
):  # fmt: skip
    IDENTITIES.plant(_name, _promise, **_members)


@IDENTITIES.found_by("test_messages_are_left_as_they_are")
class ChangesMessages(DefaultIdentity):
    def update(self, message):
        message.new = tuple("" if v is None else v for v in message.new)
        return super().update(message)


@IDENTITIES.found_by(
    "test_identities_that_see_no_key_change_give_no_old_key", right=NothingIdentity
)
class SeesWhatItDenies(NothingIdentity):
    def update(self, message):
        return RowImages(None, message.new, message.old or None)


@IDENTITIES.found_by("test_images_of_one_message_are_its_own")
class GivesTheSameImagesAgain(DefaultIdentity):
    def __init__(self, relation):
        super().__init__(relation)
        self.images = RowImages(None, None, None)

    def update(self, message):
        found = super().update(message)
        for name in ("before", "after", "old_key"):
            setattr(self.images, name, getattr(found, name))
        return self.images


class TestPlantedIdentities(FindsFaults):
    suite = IdentitySuite
    faults = IDENTITIES

    def rig(self, plugin, _folder):
        spec = replace(SPECS[plugin.name], factory=plugin)
        full = issubclass(plugin, FullIdentity)
        kinds = (OldTuple.FULL,) if full else (OldTuple.NONE, OldTuple.KEY)
        return IdentityRig(spec, kinds, sees_key_change=not issubclass(plugin, NothingIdentity))


# --- snapshot modes ---

MODES = Faults()
TABLE = """
    offset  incomplete  available   snapshot  stream
    no      no          no          yes       yes
    no      no          yes         yes       yes
    no      yes         no          yes       yes
    no      yes         yes         yes       yes
    yes     no          no          no        yes
    yes     no          yes         no        yes
    yes     yes         no          yes       yes
    yes     yes         yes         yes       yes
"""


@MODES.right
class Initial(Snapshotter):
    """Like initial. Right as it is."""

    table, relations = TABLE, ()

    def takes_snapshot(self, known):
        return not known.offset or known.snapshot_incomplete

    def streams(self, known):
        return True


def in_turn():
    numbers = itertools.count(1)
    return lambda *_: next(numbers) % 3 != 0


def selects(text):
    return lambda _self, table, _start: text.format(
        bare=table.name,
        quoted=f'"{table.schema}"."{table.table}"',
        good=sql_name(table.schema, table.table),
        column=table.columns[0].name,
    )


READ = "test_a_table_is_read_by_one_select"
LOCKS = "test_a_lock_is_a_statement"
ANSWERS = "test_every_answer_is_a_bool_or_a_snapshot_error"
MARKED = (
    Relation(oid=9, schema="public", table="t", columns=(Column(name="marked", type_oid=25),)),
)
FIRST = SnapshotFacts(offset=False, snapshot_incomplete=False, position_available=True)
for _name, _promise, _members in (
    ("PassesOverAnInterruptedSnapshot", "test_an_interrupted_snapshot_is_not_passed_over", {"takes_snapshot": lambda _, known: not known.offset}),
    ("PassesOverAnInterruptedSnapshot", "test_it_does_what_its_table_says", {"takes_snapshot": lambda _, known: not known.offset}),
    ("SaysThatItRecovers", "test_recovery_of_a_lost_position_is_a_snapshot", {"recovers_lost_position": lambda _: True}),
    ("KnowsNoReconnection", ANSWERS, {"takes_snapshot": lambda _, known: None if known.reconnects else not known.offset}),
    ("ReadsOtherTablesWhenAskedAgain", "test_every_table_is_read_or_not", {"reads": in_turn()}),
    ("AnswersDependOnThePast", "test_answers_do_not_depend_on_what_was_asked_before", {"takes_snapshot": in_turn()}),
    ("SelectsInTurn", READ, {"query": lambda _self, table, _start, turn=in_turn(): f"TABLE {sql_name(table.schema, table.table)}" if turn() else None}),
    ("ReadsByOtherThanASelect", READ, {"query": selects("DELETE FROM {bare} RETURNING *")}),
    ("QuotesNothing", READ, {"query": selects("SELECT * FROM {bare}")}),
    ("DoublesNoQuotes", READ, {"query": selects("SELECT * FROM {quoted}")}),
    ("QuotesNoColumns", READ, {"query": selects("SELECT {column} FROM {good}")}),
    ("QuotesNoneOfItsRig", READ, {"relations": MARKED, "query": lambda _self, table, _start: f"TABLE {table.name}" if table.columns == MARKED[0].columns else None}),
    ("ReadsAnotherTable", READ, {"query": selects("SELECT * FROM public.customers")}),
    ("ReadsByTwoStatements", READ, {"query": selects("SELECT 1; SELECT * FROM {good}")}),
    ("LocksByOtherThanAStatement", LOCKS, {"lock": lambda *_: ["LOCK TABLE t"]}),
    ("LocksNothing", LOCKS, {"lock": selects("SELECT 1 FROM {good}")}),
    ("LocksOutReaders", LOCKS, {"lock": selects("LOCK TABLE {good}")}),
    ("SaysThatItLocksOutReaders", LOCKS, {"lock": selects("LOCK TABLE {good} IN  ACCESS EXCLUSIVE MODE")}),
    ("LocksWithoutQuotes", LOCKS, {"lock": selects("LOCK TABLE {bare} IN SHARE MODE")}),
    ("AsksForAnUnknownIsolation", "test_an_isolation_is_one_that_there_is", {"isolation": lambda *_: "SERIALIZABLE READ ONLY"}),
    ("TableWithoutALine", "test_the_truth_table_is_total", {"table": TABLE.rsplit("yes     yes         yes", 1)[0]}),
):  # fmt: skip
    MODES.plant(_name, _promise, **_members)
MODES.plant("AsksItsFactsForMore", ANSWERS, AttributeError, resumes=lambda _, known: known.of_yesterday)  # fmt: skip
MODES.plant("PartialPredicate", ANSWERS, KeyError, takes_snapshot=lambda _, known: {FIRST: True}[known])  # fmt: skip


@MODES.found_by("test_a_snapshot_begins_and_is_over")
class KeepsWhatAnInterruptedSnapshotLeft(Initial):
    tables = None

    def before(self, relations, start):
        assert self.tables is None
        self.tables = relations

    def after(self, start, *, completed):
        if completed:
            self.tables = None


@MODES.right
class KeepsStatements(Initial):
    """It knows a table by its OID. Right as it is."""

    relations = (msgspec.structs.replace(MARKED[0], oid=1),)

    def __init__(self):
        self.known = {}

    def key(self, table):
        return table.oid

    def query(self, table, _start):
        return self.known.setdefault(
            self.key(table), f"TABLE {sql_name(table.schema, table.table)}"
        )


MODES.plant("ReadsItsFirstTableForEach", READ, key=lambda *_: 0)


class TestPlantedSnapshotters(FindsFaults):
    suite = SnapshotterSuite
    faults = MODES
    kept_elsewhere = frozenset({"test_recovery_of_a_lost_position_is_a_snapshot"})

    def rig(self, plugin, _folder):
        spec = SnapshotterSpec(name="mode", summary="A mode.", factory=lambda _given: plugin())
        return SnapshotterRig(spec, plugin.table, relations=plugin.relations)


# --- types ---

TYPES = Faults()
SEMVER = DataType(oid=16_500, schema="public", name="semver")
PARTS = ("major", "minor", "patch")
SCHEMA = Schema(
    kind=ConnectKind.STRUCT,
    name="semver",
    fields=tuple(Field(n, Schema(kind=ConnectKind.INT32)) for n in PARTS),
)
ZERO = dict.fromkeys(PARTS, 0)


def parse(text: str) -> dict[str, int]:
    parts = [int(part) for part in text.split(".")]
    return dict(zip(PARTS, parts, strict=True))


def arrow():
    import pyarrow as pa

    return pa.struct([(name, pa.int32()) for name in PARTS])


def spec(**changed: Any) -> TypeSpec:
    given: dict[str, Any] = {
        "summary": "Versions.",
        "claims": types_named("semver"),
        "schema": SCHEMA,
        "parse": parse,
        "zero": ZERO,
        "arrow": arrow,
    }
    return simple_type("semver", **{**given, **changed})


def mapped(**changed: Any) -> TypeSpec:
    """Return the spec with fields of its mappings changed."""
    right = spec()

    def build(column, mapper) -> ColumnMapping:
        return replace(right.build(column, mapper), **changed)

    return replace(right, build=build)


@TYPES.right
def semver():
    return spec()


def in_arrow(read):
    return mapped(arrow=converted("semver", arrow, read))


@TYPES.found_by("test_malformed_text_has_no_arrow_form")
def arrow_makes_null_of_what_it_cannot_read():
    def quiet(text):
        try:
            return parse(text)
        except ValueError:
            return None

    return in_arrow(quiet)


@TYPES.found_by("test_it_claims_its_type_and_no_other", KeyError)
def asks_an_enum_for_more():
    def claims(data_type):
        if data_type.kind is TypeKind.ENUM:
            raise KeyError(data_type.name)
        return data_type.name == "semver"

    return spec(claims=claims)


@TYPES.found_by("test_a_required_column_has_the_same_values")
def writes_required_columns_otherwise():
    def build(column, mapper):
        made = spec().build(column, mapper)
        return made if column.nullable else replace(made, to_json=lambda _text: "{}")

    return replace(spec(), build=build)


@TYPES.found_by("test_defaults_are_values")
def default_is_the_text():
    def build(column, mapper):
        made = spec().build(column, mapper)
        schema = msgspec.structs.replace(made.schema, default=column.default)
        return replace(made, schema=schema)

    return replace(spec(), build=build)


CLAIMS = "test_it_claims_its_type_and_no_other"
TYPES.make(
    ("json_says_another", "test_json_says_what_the_connect_value_says", lambda: mapped(to_json=lambda _: '{"major":1,"minor":0,"patch":0}')),
    ("schema_says_text", "test_values_fit_the_schema", lambda: spec(schema=Schema(kind=ConnectKind.STRING))),
    ("arrow_swaps_members", "test_arrow_says_what_the_connect_value_says", lambda: in_arrow(lambda text: dict(zip(PARTS[::-1], parse(text).values(), strict=True)))),
    ("claims_everything", CLAIMS, lambda: spec(claims=lambda _type: True)),
    ("claims_every_domain", CLAIMS, lambda: spec(claims=lambda t: t.name == "semver" or t.kind is TypeKind.DOMAIN)),
    ("malformed_text_is_a_key_error", "test_malformed_text_is_a_value_error", lambda: spec(parse=lambda text: {each: parse(each) for each in ("1.2.3", "0.10.0")}[text]), KeyError),
    ("zero_of_another_shape", "test_null_is_written_as_the_schema_allows", lambda: mapped(fallback={"major": "0"})),
    ("has_samples_of_another", "test_samples_are_values_of_the_type", lambda: spec(samples=[TypeSample.of_extension("semverr", "1.2.3")])),
)  # fmt: skip


class TestPlantedTypes(FindsFaults):
    suite = TypeSuite
    faults = TYPES

    def rig(self, plugin, _folder):
        return TypeRig(
            plugin(),
            SEMVER,
            {"1.2.3": {"major": 1, "minor": 2, "patch": 3}, "0.10.0": {**ZERO, "minor": 10}},
            defaults={"'1.0.0'::semver": {**ZERO, "major": 1}, "latest()": None},
            malformed=("", "1.2", "x.y.z"),
        )
