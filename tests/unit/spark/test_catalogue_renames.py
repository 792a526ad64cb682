"""Tables in a catalogue get the names of their source's, however they exchange them and whenever a driver dies."""

from hypothesis import given
from hypothesis import strategies as st

from waltap_spark.formats.merging import renamed, spare
from waltap_spark.state.output import TargetMove


class Died(Exception):
    """The driver is gone."""


class Catalogue:
    """Name → the table's own id; a driver dies at the rename number ``dies``."""

    def __init__(self, tables: dict[str, str], refused: str = "") -> None:
        self.tables, self.refused = tables, refused
        self.dies = 0

    def rename(self, old: str, new: str) -> bool:
        self.dies -= 1
        if self.dies == 0:
            raise Died
        if new == self.refused or new in self.tables:
            return False
        self.tables[new] = self.tables.pop(old)
        return True


def move(old: str, new: str) -> TargetMove:
    return TargetMove(table=new, what="current", identity=f"id of {old}", old=old, new=new)


def name(number: int) -> str:
    return f"`c`.`s`.`t{number}`"


@given(
    before=st.permutations(range(6)), after=st.permutations(range(6)), count=st.integers(1, 5),
    dies=st.integers(0, 9), late=st.booleans(),
)  # fmt: skip
def test_each_gets_its_name(before, after, count, dies, late):
    pairs = list(zip(map(name, before[:count]), map(name, after[:count]), strict=True))
    there = Catalogue({old: f"id of {old}" for old, _new in pairs})
    moves = [move(old, new) for old, new in pairs if old != new]
    there.dies = dies
    try:
        renamed(moves, there.tables.get, there.rename)
    except Died:
        there.dies = 0
    at = renamed(moves[::-1] if late else moves, there.tables.get, there.rename)
    assert at == {each: each.new for each in moves}
    assert there.tables == {new: f"id of {old}" for old, new in pairs}


def test_one_keeps_its_name_where_the_catalogue_refuses_another():
    """The next one cannot have its name either; a third is not concerned."""
    there = Catalogue({name(n): f"id of {name(n)}" for n in (1, 2, 3)}, refused=name(9))
    moves = [move(name(1), name(9)), move(name(2), name(1)), move(name(3), name(4))]
    at = renamed(moves, there.tables.get, there.rename)
    assert list(at.values()) == [name(1), name(2), name(4)]


def test_a_table_of_another_id_is_left_alone():
    there = Catalogue({name(1): "another", spare(move(name(1), name(2))): f"id of {name(1)}"})
    (at,) = renamed([move(name(1), name(2))], there.tables.get, there.rename).values()
    assert at == name(2)
    assert there.tables == {name(1): "another", name(2): f"id of {name(1)}"}


def test_a_table_that_took_the_place_of_one_that_is_gone_is_left_alone():
    there = Catalogue({name(1): "another"})
    (at,) = renamed([move(name(1), name(2))], there.tables.get, there.rename).values()
    assert at == name(1)
    assert there.tables == {name(1): "another"}
