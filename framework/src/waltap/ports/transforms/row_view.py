"""Rows for transforms in Python, as mappings that decode values on access."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import ABSENT, MissingValue, Tuple

# Type OID → conversion of its text. Values of other types stay unchanged.
_FROM_TEXT: dict[int, Callable[[str], object]] = {
    16: lambda text: text == "t",  # bool
    20: int,  # int8
    21: int,  # int2
    23: int,  # int4
    26: int,  # oid
    700: float,  # float4
    701: float,  # float8
    1700: Decimal,  # numeric
}


# A function of a filter reads rows one by one, so names must not be resolved for each.
@lru_cache(maxsize=1024)
def _places(relation: Relation) -> Mapping[str, tuple[int, int]]:
    """Return column name → (index, type OID)."""
    return {c.name: (index, c.type_oid) for index, c in enumerate(relation.columns)}


class RowView(Mapping[str, object]):
    """Show one row image as a mapping.

    Columns that the image lacks are not in the mapping. Values are bool, int, float or Decimal. Other
    types have PostgreSQL's text. NULL is None, and a value that the server did not send is UNCHANGED.
    """

    __slots__ = ("_places", "_values")

    def __init__(self, relation: Relation, values: Tuple) -> None:
        self._places, self._values = _places(relation), values

    def __getitem__(self, name: str) -> object:
        index, oid = self._places[name]
        value = self._values[index]
        if isinstance(value, str):
            load = _FROM_TEXT.get(oid)
            return value if load is None else load(value)
        if value is ABSENT:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        values = self._values
        return (name for name, (index, _) in self._places.items() if values[index] is not ABSENT)

    def __len__(self) -> int:
        return sum(value is not ABSENT for value in self._values)

    def raw(self, name: str) -> str | MissingValue | None:
        """Return a value as the decoder read it, ABSENT included.

        Raises: KeyError.
        """
        return self._values[self._places[name][0]]


@dataclass(frozen=True, slots=True)
class RowChange:
    """Describe a change of a row."""

    # c, u, d, or r for a row of a snapshot.
    op: str
    relation: Relation
    # None if the server did not send the image.
    before: RowView | None
    after: RowView | None

    @property
    def schema(self) -> str:
        """Return the schema's name."""
        return self.relation.schema

    @property
    def table(self) -> str:
        """Return the table's name."""
        return self.relation.table
