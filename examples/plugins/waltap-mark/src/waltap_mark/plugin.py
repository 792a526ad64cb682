"""What this distribution contributes to waltap."""

from collections.abc import Iterable

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import SignalActionSpec
from waltap_mark.action import act

WALTAP_API = 1


@hookimpl
def register_signal_actions() -> Iterable[SignalActionSpec]:
    """Contribute the action."""
    yield SignalActionSpec(name="mark", summary="Marks where the pipeline is.", factory=act)
