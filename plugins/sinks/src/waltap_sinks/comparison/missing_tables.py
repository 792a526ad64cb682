"""Tables that a pipeline captures, and of which its destination has nothing."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from waltap.sink.verification import KeptTable
from waltap_sinks.comparison.differences import TableDifferences
from waltap_sinks.comparison.source import ComparisonSource, SourcePlace

__all__ = ["UNREADABLE", "CaptureScope", "lacking"]

UNREADABLE: Final = "there is no such table, and this role may not read the source's"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureScope:
    """What a pipeline captures. ``captures`` tells for (schema, table); ``via_root``: rows of partitions
    come as those of the table that is partitioned. ``unsure``: why a table with rows may be lacking all
    the same, "" where it may not."""

    captures: Callable[[str, str], bool]
    via_root: bool = False
    unsure: str = ""


def lacking(
    source: ComparisonSource,
    kept: Iterable[KeptTable],
    captured: CaptureScope,
    wanted: Sequence[str] = (),
) -> list[TableDifferences]:
    """Return the captured tables of the source (where given, of ``wanted``) that are not ``kept``: those
    that have rows, or that may not be read, and those that are wanted by name."""
    places = source.places()
    names = {each.name: each.oid for each in places.values()}
    there = {oid for each in kept for oid in (each.oid, names.get(each.name, 0)) if oid}
    found = []
    for place in _streamed(places, there, captured):
        if wanted and place.name not in wanted:
            continue
        rows = source.count(place, most=1 if captured.unsure else None)
        if rows is None:
            found.append(_lacking(place.name, 0, apart=UNREADABLE))
        elif rows:
            found.append(_lacking(place.name, rows, apart=captured.unsure))
        elif wanted:  # it is asked for, and nothing is missing
            found.append(_lacking(place.name, 0))
    return found


def _streamed(
    places: Mapping[int, SourcePlace], there: set[int], captured: CaptureScope
) -> Iterator[SourcePlace]:
    """Yield what captured rows come as, but for what is ``there``. A part of a tree is there with a table
    above it; where parts of a tree are there, it is not to come whole."""
    above = {oid: _above(places, oid) for oid in places}
    divided = {up for oid in there if oid in above for up in above[oid]}
    for oid, place in places.items():
        root = places[above[oid][-1]] if above[oid] else place
        whole = captured.via_root and root.oid not in divided
        named = root if captured.via_root else place
        if not captured.captures(named.schema, named.table) or there & {oid, *above[oid]}:
            continue
        if (not above[oid]) if whole else not place.partitioned:
            yield place


def _above(places: Mapping[int, SourcePlace], oid: int) -> list[int]:
    """Return the tables that ``oid`` is a partition of, the root last."""
    found: list[int] = []
    while (parent := places[oid].parent) in places:
        found.append(parent)
        oid = parent
    return found


def _lacking(name: str, rows: int, apart: str = "") -> TableDifferences:
    return TableDifferences(
        table=name,
        source_rows=0 if apart else rows,
        target_rows=0,
        source_hash="",
        target_hash="",
        lacking=True,
        apart=apart,
    )
