"""Changes that no event can be made of: stopped at, left out, or kept as dead letters."""

import json

import pytest
from tests.harness.dead_letters import dead_letters, letters_of
from tests.harness.pipeline import PipelineRig

from waltap.errors import DecodeError

pytestmark = pytest.mark.pipeline(
    sql="CREATE TABLE n (id int PRIMARY KEY, v numeric(9,2))",
    settings={"snapshot.mode": "no_data", "sink.type": "jsonl"},
)


@pytest.fixture
def to_lines(pipeline: PipelineRig) -> PipelineRig:
    pipeline.settings["sink.path"] = str(pipeline.folder / "events.jsonl")
    return pipeline


def _written(pipeline: PipelineRig) -> list[int]:
    lines = (pipeline.folder / "events.jsonl").read_text().splitlines()
    return [json.loads(line)["value"]["after"]["id"] for line in lines]


NAN = "INSERT INTO n VALUES (1, 1.5), (2, 'NaN'), (3, 2.5)"


def test_a_value_that_cannot_be_converted_becomes_a_dead_letter(to_lines: PipelineRig) -> None:
    to_lines.settings |= {"event.converting.failure.handling.mode": "dead_letter"}
    to_lines.catch_up()
    to_lines.database.execute(NAN)
    to_lines.catch_up()
    assert _written(to_lines) == [1, 3]
    (letter,) = letters_of(to_lines)
    assert (letter.table, letter.op, letter.place.index) == ("public.n", "c", 1)
    assert letter.record is None
    # with null in its place it can be delivered
    del to_lines.settings["event.converting.failure.handling.mode"]
    answer = dead_letters(to_lines, "replay")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert _written(to_lines) == [1, 3, 2]


@pytest.mark.parametrize(("mode", "tolerance"), [("warn", "none"), ("skip", "none"), (None, "all")])
def test_an_event_that_cannot_be_made_is_left_out_where_that_is_said(
    to_lines: PipelineRig, mode: str | None, tolerance: str
) -> None:
    to_lines.settings |= {
        "event.converting.failure.handling.mode": "fail",
        "event.processing.failure.handling.mode": mode,
        "errors.tolerance": tolerance,
    }
    to_lines.catch_up()
    to_lines.database.execute(NAN)
    run = to_lines.catch_up()
    assert _written(to_lines) == [1, 3]
    assert letters_of(to_lines) == []
    assert run.engine.status().left_out == 1


def test_by_default_it_stops_the_pipeline_and_is_named(to_lines: PipelineRig) -> None:
    to_lines.settings |= {"event.converting.failure.handling.mode": "fail"}
    to_lines.settings |= {"waltap.linger.ms": 3_600_000}  # one batch, however the rows are sent
    to_lines.catch_up()
    to_lines.database.execute(NAN)
    with pytest.raises(DecodeError, match=r"c of public\.n, [0-9A-F]+/[0-9A-F]+, change 1"):
        to_lines.catch_up()
    assert _written(to_lines) == []
