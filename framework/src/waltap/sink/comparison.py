"""What a comparison of one table with its source tells (hook ``choose_comparison``)."""

from dataclasses import dataclass

__all__ = ["TableComparison"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableComparison:
    """One table of a destination beside the source's. ``surplus`` are keys, for people, of some rows that
    the source has no more; ``place`` is a file that names all of them, "" where there is none."""

    equal: bool
    surplus: tuple[str, ...] = ()
    place: str = ""
