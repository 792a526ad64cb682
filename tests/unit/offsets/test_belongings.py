"""What a pipeline has on servers: kept before it is made, found again after a kill."""

from pathlib import Path

import pytest

from waltap.errors import ConnectionLost, SourceError
from waltap.ports.offsets.owned_objects import (
    OwnedObject,
    OwnedObjects,
)

SLOT = OwnedObject(kind="slot", name="s", system_id="1", database="d")
PUBLICATION = OwnedObject(kind="publication", name="s", system_id="1", database="d")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "p" / "belongings.json"


def test_entries_outlive_the_process_and_are_distinguished_by_their_key(path: Path) -> None:
    OwnedObjects(path).keep(SLOT, PUBLICATION)
    found = OwnedObjects(path)
    assert found.all() == [PUBLICATION, SLOT]
    assert found.find(*SLOT.key) == SLOT
    assert found.find("slot", "s", "2", "d") is None
    assert found.find("slot", "s", "1", "other") is None
    found.forget([SLOT])
    assert OwnedObjects(path).all() == [PUBLICATION]


def test_an_entry_is_there_before_the_block_that_makes_the_thing(path: Path) -> None:
    with OwnedObjects(path).making(SLOT):
        assert OwnedObjects(path).all() == [SLOT]
    assert OwnedObjects(path).all() == [SLOT]


@pytest.mark.parametrize(
    ("error", "stays"), [(SourceError("no"), False), (ConnectionLost("?"), True)], ids=["no", "?"]
)
def test_what_could_not_be_made_is_forgotten_unless_nobody_knows(
    path: Path, error: SourceError, *, stays: bool
) -> None:
    with pytest.raises(SourceError), OwnedObjects(path).making(SLOT):
        raise error
    assert OwnedObjects(path).all() == ([SLOT] if stays else [])


def test_nothing_is_written_when_nothing_changes(path: Path) -> None:
    OwnedObjects(path).forget([SLOT])
    assert not path.exists()
    OwnedObjects(path).keep(SLOT)
    before = path.stat().st_ino
    again = OwnedObjects(path)
    again.keep(SLOT)
    again.forget([PUBLICATION])
    assert path.stat().st_ino == before
