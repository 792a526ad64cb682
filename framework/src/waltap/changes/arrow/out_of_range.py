"""Errors of values that no Arrow column can hold."""

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
