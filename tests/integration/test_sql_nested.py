"""Columns whose values have parts, in SQL targets that have no such types: rows arrive, and are read."""

import json
from typing import Any

import pytest
from tests.harness.pipeline import PipelineRig

SETUP = """
CREATE EXTENSION hstore;
CREATE TYPE pair AS (a int, b text, c numeric(20,9), d date[]);
CREATE TABLE t (id int PRIMARY KEY, p point, h hstore, hs hstore[], c pair, cs pair[], n int[]);
INSERT INTO t VALUES (1, '(1.5,-2)', 'a=>1, "q u"=>NULL', '{"b=>2",NULL}',
                      '(7,"x,""y",0,"{2020-01-01,NULL}")', '{"(,,,)",NULL}', '{1,NULL}')
"""
GIVEN = {
    "p": {"x": 1.5, "y": -2.0},
    "h": {"a": "1", "q u": None},
    "hs": [{"b": "2"}, None],
    "c": {"a": 7, "b": 'x,"y', "c": "0.000000000", "d": ["2020-01-01", None]},
    "cs": [{"a": None, "b": None, "c": None, "d": None}, None],
    "n": [1, None],
}


OTHERS = pytest.mark.parametrize("place", ["file", "maria", "duck"], indirect=True)


@pytest.fixture
def pipeline(database, place, tmp_path) -> PipelineRig:
    database.execute(SETUP)
    settings: dict[str, Any] = {
        "sink.type": "sql",
        "sink.url": place.url,
        "hstore.handling.mode": "map",
        "waltap.composite.types": "struct",
    }
    return PipelineRig(database, tmp_path, settings)


@OTHERS
def test_they_are_read_and_streamed_alike(pipeline, place):
    pipeline.catch_up()
    pipeline.deliver(
        "INSERT INTO t SELECT 2, p, h, hs, c, cs, n FROM t", "INSERT INTO t (id) VALUES (3)"
    )
    read, streamed, empty = place.rows("t", "id", *GIVEN)
    assert read[1:] == streamed[1:]
    assert empty[1:] == (None,) * len(GIVEN)
    if not place.url.startswith("duckdb"):  # which writes lists and structs in its own way
        assert [json.loads(text or "") for text in read[1:]] == list(GIVEN.values())
