"""What can be wrong with a value on its way into an Arrow column."""

from waltap.errors import SinkError

__all__ = ["ArrowMalformed", "ArrowMisfit"]


class ArrowMisfit(SinkError):
    """A value cannot be held by its column's Arrow type and ``arrow_misfit`` is error."""

    code = "WT-5301"
    remedy = (
        "Set waltap.arrow.misfit to null (the value becomes null) or to string (columns of such "
        "types become text)."
    )

    def __init__(self, kind: str) -> None:
        super().__init__(f"a value does not fit its Arrow type: {kind}", kind=kind)


class ArrowMalformed(SinkError):
    """A value is not PostgreSQL text of its column's type, so it has no Arrow form at all."""

    code = "WT-5302"
    remedy = (
        "Check that DateStyle, IntervalStyle, bytea_output and TimeZone are not forced on the "
        "connection; if they are not, report this with the type named above."
    )

    def __init__(self, kind: str) -> None:
        super().__init__(f"a value is not the text of its type: {kind}", kind=kind)
