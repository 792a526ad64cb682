"""What this distribution contributes to waltap."""

from collections.abc import Iterable

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import SinkSpec
from waltap_lines.sink import LinesProperties, LinesSink

WALTAP_API = 1


@hookimpl
def register_sinks() -> Iterable[SinkSpec]:
    """Contribute the sink: ``waltap run FILE --sink lines:PATH``."""
    yield SinkSpec(
        name="lines",
        summary="One line of JSON per record, in a file.",
        properties=LinesProperties,
        factory=LinesSink,
    )
