"""The comparison as others ask for it: is a table of the destination equal to the source's?"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from waltap.sink.comparison import TableComparison
from waltap_sinks.comparison.commands import connected, dsn_of, publications_of, readables
from waltap_sinks.comparison.compare import compare
from waltap_sinks.comparison.surplus import write_surplus

if TYPE_CHECKING:
    from waltap.config.profile import Profile

__all__ = ["compared"]


def compared(
    profile: "Profile", tables: Sequence[str], patience_s: float
) -> Mapping[str, TableComparison] | None:
    """Return what is known of ``tables`` over all destinations of a profile; None where one of them cannot
    be read. Raises: WaltapError."""
    sinks = [outlet.sink for outlet in profile.outlets] or [profile.sink]
    if any(sink.spec.readable is None for sink in sinks):
        return None
    found: dict[str, TableComparison] = {}
    with connected(dsn_of(profile)) as source:
        for name, readable in readables(profile, None):
            try:
                results = compare(
                    source,
                    readable,
                    tables=tables,
                    patience_s=patience_s,
                    publications=publications_of(profile),
                )
            finally:
                readable.close()
            places: Mapping[str, Path] = {}
            with suppress(OSError):  # what is found counts all the same
                places = write_surplus(profile, name, results)
            for each in results:
                known = found.get(each.table, TableComparison(equal=True))
                found[each.table] = TableComparison(
                    equal=known.equal and each.equal and not (each.left_out or each.apart),
                    surplus=(*known.surplus, *each.surplus),
                    place=" and ".join(
                        filter(None, (known.place, str(places.get(each.table, ""))))
                    ),
                )
    return found
