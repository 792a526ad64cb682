"""Signals: what users ask of a running pipeline, and the channels they come by."""

from typing import TYPE_CHECKING

from waltap.public_names import on_first_use

if TYPE_CHECKING:
    from waltap.signals.channel import (
        SignalChannel,
    )
    from waltap.signals.signal import (
        Signal,
    )

__all__ = [
    "Signal",
    "SignalChannel",
]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(
        __name__,
        {
            "waltap.signals.channel": ("SignalChannel",),
            "waltap.signals.signal": ("Signal",),
        },
    )
