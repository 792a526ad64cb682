"""The SQL sink on SQLite, without a server: random work with crashes between leads to the source's rows.

`tests/integration/test_sql_changes.py` does it on every kind of target.
"""

import random
from pathlib import Path

import pytest
from waltap.source.position import Position

from tests.harness.changelog import Database as Model
from tests.harness.changelog import batch
from tests.harness.sql import PEOPLE, VISITS, Place, copy_of, file, model, some_of_everything

__all__ = ["file"]


@pytest.mark.parametrize("seed", range(3))
def test_random_work_leads_to_the_rows_of_the_source(
    file: Place,  # noqa: F811
    tmp_path: Path,
    seed: int,
) -> None:
    chance = random.Random(seed)
    source, target = Model(), file.opened(tmp_path)
    names = [column.name for column in PEOPLE.columns]
    for _ in range(12):
        parts = [some_of_everything(source, chance) for _ in range(chance.choice((1, 1, 3, 8)))]
        target.write(batch(*parts))
        if chance.random() < 0.4:
            target.close()
            target = file.sink(tmp_path)
            assert target.open() == Position(parts[-1].end_lsn)
            target.write(batch(*map(copy_of, parts)))
        assert file.rows("people", *names) == model(source.rows["public.people"])
    target.close()


@pytest.mark.parametrize("opened_again", [True, False])
def test_what_was_committed_is_left_out_when_it_comes_again(
    file: Place,  # noqa: F811
    tmp_path: Path,
    *,
    opened_again: bool,
) -> None:
    """After a lost link the source begins anew, in batches that are cut elsewhere."""
    source, target = Model(), file.opened(tmp_path)
    parts = []
    for number in range(6):
        source.insert(VISITS, [str(number), "page"])  # without a key: it would be there twice
        parts.append(source.commit())
    target.write(batch(*map(copy_of, parts[:4])))
    if opened_again:
        target.close()
        target = file.opened(tmp_path)
    for first in range(0, 6, 3):
        target.write(batch(*parts[first : first + 3]))
    assert target.flush() == Position(parts[-1].end_lsn)
    target.close()
    assert file.rows("visits", "person", "page") == model(source.rows["public.visits"])
