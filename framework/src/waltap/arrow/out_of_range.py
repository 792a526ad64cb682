"""What can be wrong with a value on its way into an Arrow column."""

from collections import Counter
from typing import NoReturn

from waltap.errors import SinkError

__all__ = ["ArrowMalformed", "ArrowMisfit", "MisfitCount", "named"]


class ArrowMisfit(SinkError):
    """A value cannot be held by its column's Arrow type, and ``waltap.arrow.out_of_range`` is error."""

    code = "WT-5301"
    remedy = (
        "Set waltap.arrow.out_of_range to null (the value becomes null) or to string (columns of such "
        "types become text)."
    )

    def __init__(self, kind: str, where: str = "") -> None:
        place = f" of {where}" if where else ""
        super().__init__(f"a value{place} does not fit its Arrow type: {kind}", kind=kind)
        self.kind = kind


class ArrowMalformed(SinkError):
    """A value is not PostgreSQL text of its column's type, so it has no Arrow form at all."""

    code = "WT-5302"
    remedy = (
        "Check that DateStyle, IntervalStyle, bytea_output and TimeZone are not forced on the "
        "connection; if they are not, report this with the type named above."
    )

    def __init__(self, kind: str, where: str = "") -> None:
        place = f" of {where}" if where else ""
        super().__init__(f"a value{place} is not the text of its type: {kind}", kind=kind)
        self.kind = kind


class MisfitCount:
    """Values that became null because their Arrow type cannot hold them, by reason.

    Conversions count (`add`), who asked for them takes what was counted (`take`): conversions know
    no column. Single-threaded.
    """

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, reason: str, values: int = 1) -> None:
        """Note that ``values`` values became null."""
        self._found[reason] += values

    def take(self) -> dict[str, int]:
        """Return reason → values since the last time."""
        found, self._found = dict(self._found), Counter()
        return found


def named(error: ArrowMisfit | ArrowMalformed, where: str) -> NoReturn:
    """Raise ``error`` again with the column it is about."""
    raise type(error)(error.kind, where) from error
