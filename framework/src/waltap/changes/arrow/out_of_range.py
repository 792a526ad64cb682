"""Errors and counts of values that no Arrow column can hold."""

from collections import Counter
from typing import NoReturn

from waltap.errors import SinkError


class ArrowMisfit(SinkError):
    """A value does not fit its column's Arrow type.

    ``waltap.arrow.out.of.range`` is error.
    """

    code = "WT-5301"
    remedy = (
        "Set waltap.arrow.out.of.range to null (the value becomes null) or to string (columns of such "
        "types become text)."
    )

    def __init__(self, kind: str, where: str = "") -> None:
        of_column = f" of {where}" if where else ""
        super().__init__(f"a value{of_column} does not fit its Arrow type: {kind}", kind=kind)
        self.kind = kind


class ArrowMalformed(SinkError):
    """A value is not PostgreSQL text of its column's type."""

    code = "WT-5302"
    remedy = (
        "Check that DateStyle, IntervalStyle, bytea_output and TimeZone are not forced on the "
        "connection; if they are not, report this with the type named above."
    )

    def __init__(self, kind: str, where: str = "") -> None:
        of_column = f" of {where}" if where else ""
        super().__init__(f"a value{of_column} is not the text of its type: {kind}", kind=kind)
        self.kind = kind


class MisfitCount:
    """Count values that became null, by reason.

    Their Arrow type cannot hold them. Conversions do not know their column: they `add`, and the caller
    of a conversion takes the counts (`take`). Single-threaded.
    """

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, reason: str, values: int = 1) -> None:
        self._found[reason] += values

    def take(self) -> dict[str, int]:
        """Return and reset the counts by reason."""
        found, self._found = dict(self._found), Counter()
        return found


def named(error: ArrowMisfit | ArrowMalformed, where: str) -> NoReturn:
    """Raise ``error`` again with its column."""
    raise type(error)(error.kind, where) from error
