"""A column that is masked or cut stays so, or nothing of it is sent, whatever its table goes through."""

from pathlib import Path

import pytest

from waltap.pipeline.relations import MaskLost

from tests.rigs.pipeline import Pipeline
from tests.servers.postgres import Database

SECRET = r"public\..*\.secret"
MASKS = [
    "column.mask.with.3.chars",
    "column.truncate.to.2.chars",
    "column.mask.hash.v2.SHA-256.with.salt.pepper",
]
LEAKS = [
    "ALTER TABLE t RENAME COLUMN secret TO s2; INSERT INTO t VALUES (2, 'sesame', 'x')",
    "ALTER TABLE t DROP secret, ADD s2 text; INSERT INTO t (id, s2) VALUES (2, 'sesame')",
    "ALTER TABLE t RENAME TO t2; ALTER TABLE t2 RENAME secret TO s2;"
    " INSERT INTO t2 VALUES (2, 'sesame', 'x')",
    "ALTER TABLE t ALTER secret TYPE int USING 7; INSERT INTO t VALUES (2, 4711, 'x')",
]
HARMLESS = [
    "ALTER TABLE t DROP secret; INSERT INTO t (id) VALUES (2)",
    "ALTER TABLE t ADD more text; INSERT INTO t VALUES (2, 'sesame')",
    "ALTER TABLE t RENAME w TO x; INSERT INTO t VALUES (2, 'sesame')",
    "ALTER TABLE t ALTER secret TYPE varchar(2) USING 'ab'; INSERT INTO t VALUES (2, 'ab')",
]


@pytest.fixture
def pipeline(database: Database, tmp_path: Path) -> Pipeline:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, secret text, w text);"
        "CREATE TABLE other (id int PRIMARY KEY, secret text); INSERT INTO t VALUES (1, 'sesame')"
    )
    return Pipeline(database, tmp_path)


def delivered(pipeline: Pipeline) -> list[int]:
    return [int(event.row["id"]) for event in pipeline.destination.of("t", "t2")]


@pytest.mark.parametrize("number", range(len(LEAKS)))
def test_a_mask_that_fits_no_more_stops_the_run_before_the_row(
    pipeline: Pipeline, database: Database, number: int
) -> None:
    pipeline.settings[MASKS[number % len(MASKS)]] = SECRET
    pipeline.catch_up()
    with pytest.raises(MaskLost) as stopped, pipeline.running() as run:
        database.execute(LEAKS[number])
        run.until(lambda: run.error is not None, "the stop")
    assert "WT-2049" in str(stopped.value)
    with pytest.raises(MaskLost):
        pipeline.catch_up()
    assert delivered(pipeline) == [1]


@pytest.mark.parametrize("statement", HARMLESS)
def test_what_leaves_masks_alone_goes_on(
    pipeline: Pipeline, database: Database, statement: str
) -> None:
    pipeline.settings["column.truncate.to.2.chars"] = SECRET
    pipeline.catch_up()
    database.execute(statement)
    pipeline.catch_up()
    assert delivered(pipeline) == [1, 2]


def test_the_pattern_that_the_remedy_names_goes_on(pipeline: Pipeline, database: Database) -> None:
    pipeline.settings["column.mask.with.3.chars"] = SECRET
    pipeline.catch_up()
    database.execute(LEAKS[0])
    with pytest.raises(MaskLost) as stopped:
        pipeline.catch_up()
    pipeline.settings["column.mask.with.3.chars"] = f"{stopped.value.fields['pattern']},{SECRET}"
    pipeline.catch_up()
    assert delivered(pipeline) == [1, 2]


def test_a_warning_is_enough_where_the_profile_says_so(
    pipeline: Pipeline, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline.settings |= {"column.mask.with.3.chars": SECRET, "waltap.unmatched.masks": "warn"}
    pipeline.catch_up()
    database.execute(LEAKS[0])
    pipeline.catch_up()
    assert delivered(pipeline) == [1, 2]
    assert "fits public.t.s2" in caplog.text


def test_a_left_out_column_with_a_new_name_is_told(
    pipeline: Pipeline, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline.settings["column.exclude.list"] = SECRET
    pipeline.catch_up()
    database.execute(LEAKS[0])
    pipeline.catch_up()
    assert "left out secret of public.t" in caplog.text
