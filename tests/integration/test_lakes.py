"""Tables of Delta Lake and Iceberg: what a server has arrives typed, and what can go wrong has its code."""

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pytest
from deltalake import DeltaTable
from deltalake.table import TableAlterer
from pyiceberg.catalog.sql import SqlCatalog
from tests.harness.changelog import Database as Model
from tests.harness.changelog import batch, context, copy_of, in_parts, relation, replay
from tests.harness.door import s3_door
from tests.harness.lakes import Lake
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.ports import free_ports
from tests.harness.servers.s3 import ANYBODY, REGION

from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import remaining
from waltap.errors import RetryVerdict, SinkError
from waltap.ports.sink.sink import Sink
from waltap.ports.sink.stored_position import DestinationBehind
from waltap_lake.delta import DeltaLake
from waltap_lake.errors import (
    LakeFenced,
    LakeRefused,
    LakeTableUnfit,
    LakeTransactionGap,
    LakeUnavailable,
)
from waltap_lake.lake import LakeTableName
from waltap_lake.plugin import register_sinks
from waltap_lake.properties import DeltaLakeProperties, IcebergLakeProperties

SPECS = {spec.name: spec for spec in register_sinks()}
PEOPLE = relation("public.people", [("id", "int4"), ("name", "text")])
WIDER = relation("public.people", [("id", "int8"), ("name", "text")])
OTHER = relation("public.people", [("id", "text"), ("name", "text")])


@pytest.fixture(params=["delta", "iceberg"])
def lake(request, tmp_path) -> Iterator[Lake]:
    made = Lake(request.param, tmp_path)
    yield made
    made.writer.close()


def people(source: Model, *ids: int) -> Any:
    return source.inserted(PEOPLE, *[[str(number), f"n{number}"] for number in ids])


def ids(lake: Lake) -> list[object]:
    return [row["id"] for row in lake.rows("people")]


KINDS = """
CREATE TABLE kinds (id bigint PRIMARY KEY, b bool, i2 int2, f4 float4, n numeric, n2 numeric(20, 5),
  huge numeric(60, 2), t text, bin bytea, d date, ti time, ts timestamp, tt timestamptz, u uuid, jb jsonb,
  a int[], tis time[], p point, o oid);
INSERT INTO kinds VALUES (1, true, -1, 0.5, 1.5, 12345.67891, 7.25, 'ü😀', '\\x00ff', '2024-02-29', '12:30',
  '2024-02-29 12:30', '2024-02-29 12:30Z', '0b5f1a2c-3d4e-4f60-8a7b-000000000001', '{"b": [1]}',
  '{1,NULL,3}', '{12:30}', '(1,2)', 7);
INSERT INTO kinds (id) VALUES (2);
"""


def test_a_table_arrives_typed_by_snapshot_and_by_stream(lake, database):
    database.execute(KINDS)
    pipeline = PipelineRig(
        database, lake.folder, lake.settings() | {"schema.include.list": "public"}
    )
    pipeline.catch_up()
    pipeline.deliver(
        "UPDATE kinds SET id = id + 10, t = 'new'; ALTER TABLE kinds ADD more int",
        "INSERT INTO kinds (id, more) VALUES (3, 4); DELETE FROM kinds WHERE id = 12",
    )
    found = lake.table("kinds")
    types = {name: str(found.schema.field(name).type) for name in ("id", "n2", "d", "tt", "more")}
    assert types["id"], types["more"] == ("int64", "int32")
    assert types["n2"] == "decimal128(20, 5)"
    assert types["d"].startswith("date32")
    assert types["tt"] == "timestamp[us, tz=UTC]"
    assert [row["_op"] for row in lake.rows("kinds")][:2] == ["r", "r"]
    state = {row["id"]: row for row in replay(lake.rows("kinds"), ("id",))}
    assert set(state) == {3, 11}
    assert (state[11]["t"], state[11]["bin"], state[11]["a"]) == ("new", b"\x00\xff", [1, None, 3])
    assert (str(state[11]["huge"]), state[3]["more"]) == ("7.25", 4)


def test_a_transaction_beyond_memory_is_committed_in_pieces_and_gone_on_with(lake):
    rows = [[str(number), "x" * 100] for number in range(40_000)]
    one, two = in_parts(Model().inserted(PEOPLE, *rows), 20_000, 20_000)
    lake.open(**{"memory.max.bytes": 0})
    piece = batch(one)
    piece.position = Position(0, one.commit_lsn, 20_000)
    lake.writer.write(piece)
    assert len(ids(lake)) == 20_000
    assert lake.open() == piece.position
    assert lake.take(one, two) == Position(two.end_lsn)
    assert ids(lake) == list(range(40_000))


def test_the_second_instance_shuts_out_the_first(lake):
    source, other = Model(), Lake(lake.kind, lake.folder)
    lake.open()
    lake.take(people(source, 1))
    assert other.open() is not None
    later = people(source, 2)
    other.take(later)
    with pytest.raises(LakeFenced) as found:
        lake.take(later)
    assert "Leave one instance" in str(found.value)
    other.writer.close()
    assert ids(lake) == [1, 2]


def test_two_pipelines_share_a_lake(lake, monkeypatch):
    source, other, load = Model(), Lake(lake.kind, lake.folder), SqlCatalog.load_table
    cats = relation("public.cats", [("id", "int4")])
    named = replace(context(lake.folder / "other", has_offset=True), pipeline="other")
    other.writer = SPECS[lake.kind].factory(lake.writer._properties, named)
    looks: list[int] = []

    def loaded(catalog, identifier):
        found = load(catalog, identifier)
        if identifier[-1] == "positions" and looks and looks.pop() == 1:  # that of the commit
            other.take(source.inserted(cats, ["7"]))
        return found

    monkeypatch.setattr(SqlCatalog, "load_table", loaded)
    lake.open()
    other.writer.open()
    for number in range(3):
        other.take(source.inserted(cats, [str(number)]))
        looks[:] = [1, 2]
        lake.take(people(source, number))
    other.writer.close()
    assert ids(lake) == [0, 1, 2]
    met = 3 * [7] if lake.kind == "iceberg" else []
    assert lake.ids("cats") == [0, 1, 2, *met]


def test_a_commit_whose_answer_was_lost_is_known_again(tmp_path, monkeypatch):
    """The client of the store sends it again, and finds it there."""
    lake, source, append = Lake("delta", tmp_path), Model(), deltalake.write_deltalake
    set_properties = TableAlterer.set_table_properties

    def append_twice(table, *given, **named):
        append(DeltaTable(table.table_uri, version=table.version()), *given, **named)
        append(table, *given, **named)

    def set_twice(alter, *given, **named):
        table = DeltaTable(alter.table.table_uri, version=alter.table.version())
        set_properties(table.alter, *given, **named)
        set_properties(alter, *given, **named)

    monkeypatch.setattr(deltalake, "write_deltalake", append_twice)
    monkeypatch.setattr(TableAlterer, "set_table_properties", set_twice)
    lake.open()
    for number in range(3):
        part = people(source, number)
        assert lake.take(part) == Position(part.end_lsn)
    lake.writer.close()
    assert ids(lake) == [0, 1, 2]


def test_a_wider_type_is_taken_or_reported_and_another_is_reported(lake):
    """Iceberg widens int to bigint; Delta shows, and goes on when the table was renamed away."""
    source = Model()
    lake.open()
    lake.take(people(source, 1))
    part = source.inserted(WIDER, ["5000000000", "big"])
    if lake.kind == "delta":
        with pytest.raises(LakeTableUnfit, match=r"public\.people: column id is int32.*rename"):
            lake.take(part)
        lake.rename_away("people")
        lake.open()
    lake.take(part)
    with pytest.raises(LakeTableUnfit, match=r"public\.people"):
        lake.take(source.inserted(OTHER, ["x", "y"]))
    with pytest.raises(SinkError):
        lake.writer.flush()
    assert ids(lake)[-1] == 5_000_000_000


def people_with(kind: str) -> Relation:
    return relation("public.people", [("id", "int4"), ("v", kind)])


ALIKE = {
    "varchar(10)": ("text", "a", "x" * 11),
    "varchar(9)": ("uuid", "a", "0b5f1a2c-3d4e-4f60-8a7b-000000000001"),
    "timestamp(3)": ("timestamp", "2024-01-01 00:00:00.5", "2024-01-01 00:00:00.000001"),
    "json": ("jsonb", "{}", "[]"),
}


@pytest.mark.parametrize("was", ALIKE)
def test_another_type_of_the_source_that_is_the_same_in_the_lake_is_taken(lake, was):
    now, old, new = ALIKE[was]
    source = Model()
    lake.open()
    for kind, number, value in ((was, "1", old), (now, "2", new), (was, "3", old)):
        lake.take(source.inserted(people_with(kind), [number, value]))
    values = [str(row["v"]).rstrip("0") for row in lake.rows("people")]
    assert values == [str(text).rstrip("0") for text in (old, new, old)]


def test_decimals_of_another_scale_are_taken_if_no_digit_of_a_row_changes(lake):
    """Iceberg's readers do not convert the digits of older files: 1.25 would become 0.0125."""
    source, narrow = Model(), people_with("numeric(10,2)")
    lake.open()
    lake.take(source.inserted(narrow, ["1", "1.25"]))
    wider = source.inserted(people_with("numeric(12,4)"), ["2", "1.2345"])
    with pytest.raises(LakeTableUnfit, match="column v is decimal128"):
        lake.take(wider)
    lake.rename_away("people")
    lake.open()
    lake.take(wider)
    if lake.kind == "iceberg":
        lake.take(source.inserted(narrow, ["3", "1.50"]))
    found = lake.table("people")
    assert found is not None
    assert str(found.schema.field("v").type) == "decimal128(12, 4)"
    assert [str(row["v"]) for row in lake.rows("people")][:1] == ["1.2345"]
    assert [str(row["v"]) for row in lake.rows("people_old")] == ["1.25"]


@pytest.mark.parametrize("at_once", ["a batch", "a transaction"])
def test_a_table_that_is_renamed_away_for_a_type_is_followed_by_one_with_the_rows_behind_it(
    lake, at_once
):
    """A start reads again what the last flush had, with rows of both types in it."""
    source = Model()
    other = relation("public.t", [("id", "int4")])
    before, after = people_with("int4"), people_with("text")
    parts = []
    for table, row in ((before, ["1", "7"]), (other, ["1"]), (after, ["2", "x"]), (other, ["2"])):
        source.insert(table, row)
        if at_once == "a batch":
            parts.append(source.commit())
    parts = parts or [source.commit()]
    lake.open()
    with pytest.raises(LakeTableUnfit, match=r"public\.people: column v is int32"):
        lake.take(*map(copy_of, parts))
    lake.rename_away("people")
    position = lake.open()
    assert position is not None
    assert lake.take(*remaining(parts, position)) == Position(parts[-1].end_lsn)
    assert [row["v"] for row in lake.rows("people_old")] == [7]
    assert [row["v"] for row in lake.rows("people")] == ["x"]
    assert lake.ids() == [1, 2]


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "not yet"])
def test_a_table_whose_relation_is_gone_may_be_taken_away(lake, *, committed):
    source = Model()
    lake.open()
    lake.take(people(source, 1))
    lake.writer.write(batch(people(source, 2)))
    if committed:
        lake.writer.flush()
    lake.writer.forget(PEOPLE.oid)
    lake.writer.flush()
    assert ids(lake) == [1, 2]
    lake.remove("people")
    lake.open()
    lake.take(people(source, 3))
    assert ids(lake) == [3]
    lake.remove("people")
    with pytest.raises(DestinationBehind):
        lake.open()


T = relation("public.t", [("id", "int4")])


@pytest.fixture
def filled(lake) -> Callable[[int], Any]:
    """Open the lake, whose table ``t`` has three rows of a commit each; return what delivers another."""
    source = Model()
    lake.open()
    for number in (1, 2, 3):
        lake.take(source.inserted(T, [str(number)]))
    return lambda number: lake.take(source.inserted(T, [str(number)]))


@pytest.mark.parametrize(
    ("loss", "written"),
    [
        (Lake.remove, True),
        (Lake.restore, False),
        (Lake.restore, True),
        (Lake.put_back, False),
        (Lake.make_anew, False),
        (Lake.make_anew_and_fill, True),
    ],
)
def test_a_table_that_lost_rows_ends_the_run_under_way_and_each_start(lake, filled, loss, written):
    """Whether or not this run has written to it; the table of positions is as it was."""
    if not written:
        lake.open()
    loss(lake)
    left = lake.ids()
    with pytest.raises(DestinationBehind, match=r"public\.t "):
        filled(4)
    for _ in range(2):
        with pytest.raises(
            DestinationBehind, match=r"public\.t .*waltap repair FILE.*offsets clear"
        ):
            lake.open()
    assert lake.ids() == left


def test_what_the_owner_of_a_lake_does_is_no_loss(lake, filled):
    """Compaction and expiry, between runs and under one; a restore that is undone."""
    for number in (4, 5):
        lake.maintain()
        filled(number)
        lake.open()
    before = lake.current()
    lake.restore()
    lake.restore(before)
    filled(6)
    assert lake.ids() == [1, 2, 3, 4, 5, 6]


def test_a_commit_that_the_positions_do_not_know_is_missed_as_well(lake, filled, monkeypatch):
    """A crash between the commit of a table and that of the position, and a restore to before both: the
    next run would leave out what the table had."""

    def crash(*_given: object) -> None:
        raise SinkError("the process is killed")

    with monkeypatch.context() as patch, pytest.raises(SinkError, match="killed"):
        patch.setattr(type(lake.writer._lake), "keep", crash)
        filled(4)
    assert lake.ids() == [1, 2, 3, 4]
    lake.restore()
    with pytest.raises(DestinationBehind):
        lake.open()
    assert lake.ids() == [1, 2, 3]


def test_a_snapshot_that_goes_on_without_its_start_is_refused(lake):
    source = Model()
    people(source, *range(9))
    lake.open()
    with pytest.raises(LakeTransactionGap):
        lake.writer.write(source.snapshot(PEOPLE)[1])


def test_a_folder_that_cannot_be_made_is_reported_at_the_check_and_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    given = DeltaLakeProperties(path=str(tmp_path / "file" / "lake"))
    sink = SPECS["delta"].factory(given, context(tmp_path))
    for call in (sink.check, sink.open):
        with pytest.raises(LakeUnavailable) as found:
            call()
        assert found.value.retry is RetryVerdict.RECONNECT


@pytest.mark.parametrize(
    "text",
    [
        "AWS Error ACCESS_DENIED during HeadObject operation: No response body.",
        "status code: 400 Bad Request: <Error><Code>ExpiredToken</Code>",
        "status code: 403 Forbidden",
    ],
)
def test_a_store_that_refuses_the_user_is_no_store_that_is_away(lake, text):
    assert type(lake.writer._lake.failure(OSError(text))) is LakeRefused


@pytest.mark.parametrize("name", ["orders", "forecast", "schema_versions", "unauthorized"])
def test_the_name_of_a_table_does_not_change_what_an_error_of_a_store_means(name):
    with s3_door("http://127.0.0.1:1") as door:
        door.answer = (500, "InternalError")
        options = {
            "aws_endpoint": door.url,
            "aws_region": REGION,
            "aws_access_key_id": ANYBODY.key,
            "aws_secret_access_key": ANYBODY.secret,
            "aws_allow_http": "true",
            "max_retries": "0",
        }
        storage = {f"storage.{option}": value for option, value in options.items()}
        given = {"path": "s3://bucket/lake", "storage.NAME": storage}
        there = DeltaLake(DeltaLakeProperties.model_validate(given), "p")
        with pytest.raises(LakeUnavailable, match=name):
            there.existing(LakeTableName("public", name))


def test_the_name_of_a_table_does_not_change_what_an_error_of_a_catalogue_means(tmp_path):
    settings = {"type": "sql", "warehouse": f"file://{tmp_path / 'warehouse'}"}
    sink = iceberg_of(tmp_path, uri=f"sqlite:///{tmp_path}/c.db?timeout=0", **settings)
    sink.open()
    other = sqlite3.connect(tmp_path / "c.db")
    other.execute("BEGIN EXCLUSIVE")
    rows = Model().inserted(relation("forbidden.t", [("id", "int4")]), ["1"])
    with pytest.raises(LakeUnavailable, match="database is locked"):
        sink.write(batch(rows))
    other.close()
    sink.close()


def iceberg_of(folder: Path, **settings: str) -> Sink:
    names = {f"catalog.{name}": value for name, value in settings.items()}
    given = IcebergLakeProperties.model_validate({"catalog.NAME": names})
    return SPECS["iceberg"].factory(given, context(folder))


def test_a_catalogue_that_is_away_is_reported(tmp_path):
    (port,) = free_ports(1)
    for settings in (
        {"type": "rest", "uri": f"http://127.0.0.1:{port}"},
        {"type": "sql", "uri": f"postgresql+psycopg://u:p@127.0.0.1:{port}/x"},
        {"type": "sql", "uri": f"sqlite:///{tmp_path}/none/c.db"},
    ):
        sink = iceberg_of(tmp_path, **settings)
        for call in (sink.check, sink.open):
            with pytest.raises(LakeUnavailable) as found:
                call()
            assert "catalog.*" in str(found.value)
        sink.close()


def test_a_catalogue_in_postgresql_takes_tables_and_refuses_who_may_not_log_in(database, tmp_path):
    place = database.dsn.replace("postgresql://", "postgresql+psycopg://", 1)
    settings = {"type": "sql", "warehouse": f"file://{tmp_path / 'warehouse'}"}
    sink = iceberg_of(tmp_path, uri=place, **settings)
    sink.open()
    sink.write(batch(part := people(Model(), 1)))
    assert sink.flush() == Position(part.end_lsn)
    sink.close()
    away = iceberg_of(
        tmp_path, uri=f"{place}{'&' if '?' in place else '?'}user=nobody_here", **settings
    )
    with pytest.raises(LakeRefused, match=r"catalog\.\*"):
        away.open()
    away.close()


def test_a_format_of_names_that_gives_all_tables_one_is_refused(lake):
    with pytest.raises(ValueError, match=r"table\.name\.format"):
        lake.sink(**{"table.name.format": "all"})
