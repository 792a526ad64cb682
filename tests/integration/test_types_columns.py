"""Columns against rows, on values of a real server: a snapshot's bytes are those of the stream.

Every value of every type is rendered from tuples and from a `RowBlock`, alone and beside others, in
every mode: what one fast cast cannot take must not differ either.
"""

from dataclasses import replace
from typing import Any

import psycopg
import pytest

from tests.integration.test_types_send_format import MODES
from tests.harness.typed_values import LITERALS, UNKNOWN, both_once, typed
from waltap.arrow.tuples import RelationCodec
from waltap.capture.capture import Capture
from waltap.capture.properties import CaptureProperties
from waltap.decode.relation import Column, DataType, Relation
from waltap.format.format import FormatContext
from waltap.format.record_block import RecordBlock
from waltap.json.format import JsonFormat
from waltap.json.properties import JsonProperties
from waltap.mapping.type_mapping import TypeOptions
from waltap.mapping.type_registry import TypeRegistry
from waltap.transactions.row_block import RowBlock
from waltap.transactions.transaction import SnapshotRows
from waltap_testing.installed import identity_kept, installed_types

__all__ = ["typed"]

CASES = {**LITERALS, **UNKNOWN}
IDS = ["default", "text", "numbers", "connect"]


def groups(values: list[str]) -> list[list[str | None]]:
    """Return values alone, beside NULL, and all together."""
    alone: list[list[str | None]] = [[value] for value in values]
    beside: list[list[str | None]] = [[None, value, value] for value in values]
    return [*alone, *beside, [*values, None, *values]]


def both_forms(values: list[str | None]) -> tuple[list[tuple[Any, ...]], RowBlock]:
    import pyarrow as pa

    rows = [(str(n), value) for n, value in enumerate(values)]
    columns = [pa.array([row[n] for row in rows], pa.string()) for n in range(2)]
    return rows, RowBlock(columns, len(rows))


def relation_of(column: Column) -> Relation:
    key = Column(
        name="id",
        type_oid=23,
        data_type=DataType(oid=23, schema="pg_catalog", name="int4"),
        nullable=False,
        in_identity=True,
    )
    return Relation(oid=1, schema="s", table="t", columns=(key, column))


def json_format(options: TypeOptions) -> JsonFormat:
    properties = CaptureProperties.model_validate({"topic.prefix": "server"})
    capture = Capture(properties)
    capture.types = options
    context = FormatContext(
        describe=lambda relation: relation,
        identity=identity_kept(),
        capture=capture,
        database="shop",
        run_id="00000000-0000-4000-8000-000000000000",
        mapper=lambda modes: TypeRegistry(installed_types(), modes),
    )
    return JsonFormat(JsonProperties(), context)


def plain(records: Any) -> list[tuple[object, ...]]:
    return [(r.topic, r.key, r.value, r.headers, r.partition) for r in records]


@pytest.mark.parametrize("options", MODES, ids=IDS)
@pytest.mark.parametrize("type_name", CASES)
def test_json_of_columns_is_that_of_rows(
    typed: psycopg.Connection[Any], type_name: str, options: TypeOptions
) -> None:
    column, values = both_once(typed, type_name, CASES[type_name])
    render = json_format(replace(options, include_unknown_datatypes=True))
    relation = relation_of(column)
    for group in groups([text for text, _ in values]):
        rows, block = both_forms(group)
        of_rows, of_block = (
            render.render(
                [
                    SnapshotRows(
                        relation=relation, rows=form, ts=1, lsn=2, xid=3, first_marker="first"
                    )
                ],
                4,
            )
            for form in (rows, block)
        )
        assert isinstance(of_block, RecordBlock)
        assert plain(of_block) == plain(of_rows), group


@pytest.mark.parametrize("policy", ["null", "string"])
@pytest.mark.parametrize("type_name", CASES)
def test_arrow_of_columns_is_that_of_rows(
    typed: psycopg.Connection[Any], type_name: str, policy: str
) -> None:
    column, values = both_once(typed, type_name, CASES[type_name])
    options = TypeOptions(arrow_misfit=policy, include_unknown_datatypes=True)
    codec = RelationCodec(relation_of(column), TypeRegistry(installed_types(), options))
    for group in groups([text for text, _ in values]):
        found = []
        for form in both_forms(group):
            codec.misfits = {}
            batch = codec.batch(form)
            batch.validate(full=True)
            found.append((str(batch.column(1).to_pylist()), batch.schema, codec.misfits))
        assert found[0] == found[1], group  # NaN equals itself as text
