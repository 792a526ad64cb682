"""Define the result of comparing a table with its source."""

from dataclasses import dataclass

__all__ = ["TableComparison"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableComparison:
    """The comparison of one destination table with the source's table.

    The hook ``choose_comparison`` provides it.
    """

    equal: bool
    # Keys, as text, of some rows that exist only at the destination.
    surplus: tuple[str, ...] = ()
    # A file that names all those rows, "" without one.
    place: str = ""
