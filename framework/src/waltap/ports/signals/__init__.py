"""Receive signals of users to a running pipeline."""

from typing import TYPE_CHECKING

from waltap.base.import_rules import on_first_use

if TYPE_CHECKING:
    from waltap.ports.signals.inbox import SignalAnswer
    from waltap.ports.signals.signal import Signal, SignalCall, SignalChannel, SignalUnusable

__all__ = ["Signal", "SignalAnswer", "SignalCall", "SignalChannel", "SignalUnusable"]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__)
