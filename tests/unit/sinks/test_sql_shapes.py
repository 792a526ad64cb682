"""Shapes of tables that a SQL sink keeps: histories, and columns that the source computes."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from waltap_sinks.sql.books import Books
from waltap_sinks.sql.history import History
from waltap_sinks.sql.kinds import target_of
from waltap_sinks.sql.properties import SqlProperties
from waltap_sinks.sql.shape import TableName, TableShape
from waltap_sinks.sql.shapes import Shapes
from waltap_sinks.sql.tables import Tables

from tests.harness.changelog import context, relation


@pytest.fixture
def made(tmp_path: Path) -> Any:
    given = {"url": f"sqlite:///{tmp_path / 'rows.db'}", "history.mode": "beside"}
    properties = SqlProperties.model_validate(given)
    sink_context = context(tmp_path)
    assert sink_context.types is not None
    target = target_of(properties, sink_context)
    tables = Tables(target, Books(target, TableName(None, "p"), "test"), properties)
    shapes = Shapes(sink_context.events, properties, schemas=target.schemas)
    history = History(target, tables, shapes, sink_context.types, properties, lambda _table: None)
    return SimpleNamespace(shapes=shapes, history=history)


def names(shape: TableShape | None) -> list[str]:
    assert shape is not None
    return [column.name for column in shape.columns]


def test_the_shape_of_a_history_lives_as_long_as_that_of_its_table(made: Any) -> None:
    """One of its own would have the table looked up in the target again."""
    relations = [relation(f"public.t{n}", [("id", "int4")], oid=100 + n) for n in range(1100)]
    shapes = [made.shapes.of(each) for each in relations]
    first = [made.history.of(shape) for shape in shapes]
    assert None not in first
    assert all(made.history.of(s) is h for s, h in zip(shapes, first, strict=True))


def test_a_computed_column_that_was_read_is_left_out_until_a_change_shows_it(made: Any) -> None:
    columns, computed = [("id", "int4"), ("twice", "int4")], {"twice": {"generated": True}}
    read = relation("public.t", columns, oid=7, numbers=[1, 2], more=computed)
    without = relation("public.t", columns[:1], oid=7, numbers=[1])
    streamed = msgspec.structs.replace(read)
    assert names(made.shapes.read(read)) == ["id"]
    assert made.shapes.read(read) is made.shapes.read(read)
    assert names(made.shapes.of(without)) == names(made.shapes.read(read)) == ["id"]
    assert names(made.shapes.of(streamed)) == names(made.shapes.read(read)) == ["id", "twice"]
    assert made.shapes.read(read) is made.shapes.of(streamed), "the target is not looked up again"
    assert names(made.shapes.of(without)) == names(made.shapes.read(read)) == ["id"]
