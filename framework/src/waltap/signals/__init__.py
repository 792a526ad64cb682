"""Receive signals of users to a running pipeline."""

from typing import TYPE_CHECKING

from waltap.public_names import on_first_use

if TYPE_CHECKING:
    from waltap.signals.actions import SignalCall
    from waltap.signals.channel import SignalChannel
    from waltap.signals.errors import SignalUnusable
    from waltap.signals.inbox import SignalAnswer
    from waltap.signals.signal import Signal

__all__ = ["Signal", "SignalAnswer", "SignalCall", "SignalChannel", "SignalUnusable"]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__)
