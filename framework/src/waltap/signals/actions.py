"""What signals may ask for besides snapshots: the contract of actions that plugins contribute."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from waltap.signals.signal import Signal

__all__ = ["SignalCall"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalCall:
    """One signal on which an action is to act.

    ``arguments`` is the signal's data, parsed: an object, from outside, of any content; within
    ``waltap.signal.max.bytes``. ``position`` is how far the pipeline has delivered, as text. ``notify``
    sends a notification: (kind, members), with the signal's id and its type as the aggregate type.
    ``stop`` asks the pipeline to end as `Engine.stop` does.
    """

    pipeline: str
    signal: Signal
    arguments: Mapping[str, object]
    position: str
    notify: Callable[..., None]
    stop: Callable[[], None]
