"""What this distribution contributes to waltap."""

from collections.abc import Iterable

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import SignalChannelSpec
from waltap_inbox.channel import InboxChannel, InboxProperties

WALTAP_API = 1


@hookimpl
def register_signal_channels() -> Iterable[SignalChannelSpec]:
    """Contribute the channel."""
    yield SignalChannelSpec(
        name="inbox",
        summary="A file of JSON lines, emptied when it was read.",
        properties=InboxProperties,
        factory=InboxChannel,
    )
